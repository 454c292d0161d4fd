# find_package(uslub) makes the targets uslub::uslub (shared) and uslub::static, and uslub::malloc_static if that library is
# installed.
include("${CMAKE_CURRENT_LIST_DIR}/uslub-targets.cmake")
