# find_package(uslub) makes the targets uslub::uslub (shared) and uslub::static.
include("${CMAKE_CURRENT_LIST_DIR}/uslub-targets.cmake")
