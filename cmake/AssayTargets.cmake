# Flags shared by every target. Contraction is off everywhere: a fused multiply-add is written fma.
function(assay_compile_options target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON)
  target_compile_options(${target} PRIVATE
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
      -Werror -ffp-contract=off -fno-fast-math>)
  if(ASSAY_SANITIZE)
    target_compile_options(${target} PRIVATE -fsanitize=${ASSAY_SANITIZE} -fno-sanitize-recover=all
                                             -fno-omit-frame-pointer)
    target_link_options(${target} PUBLIC -fsanitize=${ASSAY_SANITIZE})
  endif()
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
endfunction()
