# Every dependency is a Debian 12 package; nothing is downloaded.
find_package(Threads REQUIRED)
find_package(OpenSSL 3 REQUIRED COMPONENTS Crypto)
# The CUDA plug-in is a shared library, and Debian's static Boost is not position independent.
set(Boost_USE_STATIC_LIBS OFF)
set(Boost_NO_WARN_NEW_VERSIONS ON)
find_package(Boost 1.81 EXACT REQUIRED COMPONENTS program_options json)
find_package(PkgConfig REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
find_package(yaml-cpp 0.7 REQUIRED)
find_package(fmt 9 REQUIRED)
