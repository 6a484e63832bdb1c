# The program with the CUDA plug-in, its shell completions, and the libraries with their headers, as
# a CMake package:
#   find_package(assay REQUIRED)
#   target_link_libraries(my_tool PRIVATE assay::convert)
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

install(TARGETS assay RUNTIME)
if(ASSAY_CUDA)
  install(TARGETS assay_cuda LIBRARY)
endif()
install(
  TARGETS assay_convert assay_runtime assay_calibrate assay_quantizer assay_verify
  EXPORT assayTargets
  ARCHIVE
  FILE_SET HEADERS DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/assay)

set(package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/assay)
install(EXPORT assayTargets NAMESPACE assay:: DESTINATION ${package_dir})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/assayConfigVersion.cmake
                                 COMPATIBILITY SameMajorVersion)
install(FILES cmake/assayConfig.cmake cmake/AssayDependencies.cmake
              ${PROJECT_BINARY_DIR}/assayConfigVersion.cmake
        DESTINATION ${package_dir})
install(FILES LICENSE THIRD_PARTY_NOTICES.md README.md CHANGELOG.md TYPE DOC)

foreach(shell bash zsh fish)
  set(file ${PROJECT_BINARY_DIR}/completions/assay.${shell})
  list(APPEND completion_files ${file})
  add_custom_command(OUTPUT ${file} COMMAND assay completion ${shell} > ${file}
                     DEPENDS assay COMMENT "Writing the completion script for ${shell}")
endforeach()
file(MAKE_DIRECTORY ${PROJECT_BINARY_DIR}/completions)
add_custom_target(assay_completions ALL DEPENDS ${completion_files})
set(share ${CMAKE_INSTALL_DATADIR})
install(FILES ${PROJECT_BINARY_DIR}/completions/assay.bash
        DESTINATION ${share}/bash-completion/completions RENAME assay)
install(FILES ${PROJECT_BINARY_DIR}/completions/assay.zsh
        DESTINATION ${share}/zsh/site-functions RENAME _assay)
install(FILES ${PROJECT_BINARY_DIR}/completions/assay.fish
        DESTINATION ${share}/fish/vendor_completions.d)
