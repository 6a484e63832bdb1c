# Flags shared by every target. Contraction is off everywhere: a fused multiply-add is written fma.
function(assay_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
      -Werror -ffp-contract=off -fno-fast-math>
    # GCC 12 takes "literal" + string for overlapping copies (its bug 105651).
    $<$<AND:$<COMPILE_LANGUAGE:CXX>,$<CXX_COMPILER_ID:GNU>>:-Wno-restrict>)
  if(ASSAY_SANITIZE)
    # pointer-overflow alone makes Clang 14 spend minutes on each of the SIMD kernels.
    target_compile_options(${target} PRIVATE -fsanitize=${ASSAY_SANITIZE} -fno-sanitize-recover=all
                                             -fno-sanitize=pointer-overflow
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${ASSAY_SANITIZE})
  endif()
endfunction()

# With ASSAY_JOIN_SOURCES, compiles up to two dozen of the sources in one unit: for builds from nothing
# that nobody edits under. Sources with flags of their own stay alone.
function(assay_join_sources target)
  if(NOT ASSAY_JOIN_SOURCES)
    return()
  endif()
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  execute_process(
    COMMAND ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/scripts/join_sources.py groups 24 ${ARGN}
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} OUTPUT_VARIABLE groups
    OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  # A source that is included is no header, so a class of its own may hold what only it sees.
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-subobject-linkage>)
  string(REPLACE "\n" ";" groups "${groups}")
  set(number 0)
  foreach(group ${groups})
    separate_arguments(sources UNIX_COMMAND "${group}")
    set_source_files_properties(${sources} PROPERTIES UNITY_GROUP ${target}_${number})
    math(EXPR number "${number} + 1")
  endforeach()
endfunction()

# One static library per folder: assay_<name>, alias assay::<name>. Headers are listed in a file
# set, so that each of them is also compiled alone.
function(assay_add_library name)
  cmake_parse_arguments(arg "" "" "SOURCES;HEADERS" ${ARGN})
  add_library(assay_${name} STATIC ${arg_SOURCES})
  add_library(assay::${name} ALIAS assay_${name})
  target_sources(assay_${name} PUBLIC FILE_SET HEADERS BASE_DIRS ${PROJECT_SOURCE_DIR}
                                      FILES ${arg_HEADERS})
  set_target_properties(assay_${name} PROPERTIES VERIFY_INTERFACE_HEADER_SETS ON EXPORT_NAME ${name})
  assay_compile_options(assay_${name})
  assay_join_sources(assay_${name} ${arg_SOURCES})
endfunction()

# Writes git_id.h with ASSAY_GIT_ID at build time, into a folder that only `target` sees, and only
# when it changed: a new commit recompiles one file and links one program.
function(assay_write_git_id target)
  set(folder ${PROJECT_BINARY_DIR}/generated)
  add_custom_target(${target}_git_id
    COMMAND ${CMAKE_COMMAND} -DSOURCE_DIR=${PROJECT_SOURCE_DIR} -DOUTPUT=${folder}/git_id.h
            -P ${PROJECT_SOURCE_DIR}/cmake/WriteGitId.cmake
    BYPRODUCTS ${folder}/git_id.h
    COMMENT "")
  add_dependencies(${target} ${target}_git_id)
  target_include_directories(${target} PRIVATE ${folder})
endfunction()

# Sources compiled for one instruction set and chosen at run time (convert/core/isa.h): `isa` is avx2 or
# avx512. They emit no function with a weak symbol, whose copy the linker could take for all. On
# other processors they compile to nothing. GCC 12 takes the undefined operands inside its own
# AVX-512 intrinsics for uninitialized variables.
function(assay_isa_sources target isa)
  target_sources(${target} PRIVATE ${ARGN})
  if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    return()
  endif()
  set(options -mavx2 -mfma -mf16c)
  if(isa STREQUAL avx512)
    list(APPEND options -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni
                        $<$<CXX_COMPILER_ID:GNU>:-Wno-uninitialized>
                        $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized>)
  endif()
  list(APPEND options $<$<CONFIG:Debug>:-O1>)  # or tests take minutes
  if(ASSAY_SANITIZE)  # checks of every lane's arithmetic: 25 s a file instead of 9
    list(APPEND options -fno-sanitize=undefined)
  endif()
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS "${options}")
endfunction()
