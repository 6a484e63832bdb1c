# find_package(assay): the libraries are static, so their dependencies are needed for linking.
include(${CMAKE_CURRENT_LIST_DIR}/AssayDependencies.cmake)
include(${CMAKE_CURRENT_LIST_DIR}/assayTargets.cmake)
