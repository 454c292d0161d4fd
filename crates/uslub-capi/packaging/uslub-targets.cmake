# Where the library is, told from where this file is: PREFIX/lib/cmake/uslub.
get_filename_component(_uslub_prefix "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)

if(NOT TARGET uslub::uslub)
    add_library(uslub::uslub SHARED IMPORTED)
    set_target_properties(uslub::uslub PROPERTIES
        IMPORTED_LOCATION "${_uslub_prefix}/lib/libuslub.so"
        IMPORTED_SONAME "libuslub.so.0"
        INTERFACE_INCLUDE_DIRECTORIES "${_uslub_prefix}/include")
endif()

if(NOT TARGET uslub::static)
    find_package(Threads REQUIRED)
    add_library(uslub::static STATIC IMPORTED)
    set_target_properties(uslub::static PROPERTIES
        IMPORTED_LOCATION "${_uslub_prefix}/lib/libuslub.a"
        INTERFACE_LINK_LIBRARIES Threads::Threads
        INTERFACE_INCLUDE_DIRECTORIES "${_uslub_prefix}/include")
endif()

# malloc for statically linked programs: scripts/install puts it there. The option makes the linker take it before the C
# library's.
if(NOT TARGET uslub::malloc_static AND EXISTS "${_uslub_prefix}/lib/libuslub_malloc.a")
    find_package(Threads REQUIRED)
    add_library(uslub::malloc_static STATIC IMPORTED)
    set_target_properties(uslub::malloc_static PROPERTIES
        IMPORTED_LOCATION "${_uslub_prefix}/lib/libuslub_malloc.a"
        INTERFACE_LINK_OPTIONS "LINKER:-u,malloc"
        INTERFACE_LINK_LIBRARIES Threads::Threads)
endif()

unset(_uslub_prefix)
