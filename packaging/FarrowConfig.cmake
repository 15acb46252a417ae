# Farrow::farrow is the shared library, Farrow::farrow_static the static one. memory_pool.hpp needs
# Arrow C++ besides: find_package(Arrow).
get_filename_component(_farrow_prefix "${CMAKE_CURRENT_LIST_DIR}/@UP@" REALPATH)
set(_farrow_libraries "${_farrow_prefix}/@LIBDIR@")
if(NOT TARGET Farrow::farrow AND EXISTS "${_farrow_libraries}/libfarrow.so.@VERSION@")
  add_library(Farrow::farrow SHARED IMPORTED)
  set_target_properties(Farrow::farrow PROPERTIES
    IMPORTED_LOCATION "${_farrow_libraries}/libfarrow.so.@VERSION@"
    IMPORTED_SONAME "@SONAME@"
    INTERFACE_INCLUDE_DIRECTORIES "${_farrow_prefix}/include")
endif()
if(NOT TARGET Farrow::farrow_static AND EXISTS "${_farrow_libraries}/libfarrow.a")
  add_library(Farrow::farrow_static STATIC IMPORTED)
  set_target_properties(Farrow::farrow_static PROPERTIES
    IMPORTED_LOCATION "${_farrow_libraries}/libfarrow.a"
    INTERFACE_LINK_LIBRARIES "@PRIVATE@"
    INTERFACE_INCLUDE_DIRECTORIES "${_farrow_prefix}/include")
endif()
if(NOT TARGET Farrow::farrow)
  set(Farrow_FOUND FALSE)
  set(Farrow_NOT_FOUND_MESSAGE "${_farrow_libraries} has no libfarrow.so.@VERSION@")
endif()
unset(_farrow_libraries)
unset(_farrow_prefix)
