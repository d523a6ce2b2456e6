# bdcp_library(NAME SOURCES ... MODULES ... LINK ...): the one library users link.
# It holds the objects of every module, so that an installed bdcp is one file with no internal targets to export:
# modules stay separate targets while building (a wrong arrow does not build) and disappear when installed.
# LINK: packages that the objects need when a program is linked; bdcpConfig.cmake finds them again.
# Static unless BUILD_SHARED_LIBS is set.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(bdcp_library name)
  cmake_parse_arguments(ARG "" "" "SOURCES;MODULES;LINK" ${ARGN})
  add_library(${name} ${ARG_SOURCES})
  add_library(${name}::${name} ALIAS ${name})
  target_compile_features(${name} PUBLIC cxx_std_20)
  set_target_properties(${name} PROPERTIES CXX_EXTENSIONS OFF POSITION_INDEPENDENT_CODE ON
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  target_include_directories(${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/runtime/include>"
    "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>")
  foreach(module IN LISTS ARG_MODULES)
    target_sources(${name} PRIVATE $<TARGET_OBJECTS:${module}>)
    target_include_directories(${name} PRIVATE $<TARGET_PROPERTY:${module},INTERFACE_INCLUDE_DIRECTORIES>)
    add_dependencies(${name} ${module})
  endforeach()
  target_link_libraries(${name} PRIVATE ${ARG_LINK} ${CMAKE_DL_LIBS} Threads::Threads)
  bdcp_warnings(${name})
endfunction()

# bdcp_install(NAME): headers, library, licence and the package files for find_package(bdcp).
function(bdcp_install name)
  install(TARGETS ${name} EXPORT bdcpTargets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  install(DIRECTORY "${PROJECT_SOURCE_DIR}/runtime/include/bdcp" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}")
  install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DATADIR}/doc/bdcp")
  set(package "${CMAKE_INSTALL_LIBDIR}/cmake/bdcp")
  install(EXPORT bdcpTargets NAMESPACE bdcp:: DESTINATION "${package}")
  configure_package_config_file("${PROJECT_SOURCE_DIR}/tools/cmake/bdcpConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/bdcpConfig.cmake" INSTALL_DESTINATION "${package}")
  # Below 1.0 a minor version may break users.
  write_basic_package_version_file("${PROJECT_BINARY_DIR}/bdcpConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(FILES "${PROJECT_BINARY_DIR}/bdcpConfig.cmake" "${PROJECT_BINARY_DIR}/bdcpConfigVersion.cmake"
    DESTINATION "${package}")
endfunction()

# bdcp_programs_below(VARIABLE FOLDER...): the targets that end up in bin/.
function(bdcp_programs_below variable)
  set(found "")
  foreach(folder IN LISTS ARGN)
    get_property(targets DIRECTORY "${folder}" PROPERTY BUILDSYSTEM_TARGETS)
    foreach(target IN LISTS targets)
      get_target_property(output ${target} RUNTIME_OUTPUT_DIRECTORY)
      get_target_property(type ${target} TYPE)
      if(type STREQUAL "EXECUTABLE" AND output STREQUAL "${PROJECT_BINARY_DIR}/bin")
        list(APPEND found ${target})
      endif()
    endforeach()
    get_property(below DIRECTORY "${folder}" PROPERTY SUBDIRECTORIES)
    bdcp_programs_below(deeper ${below})
    list(APPEND found ${deeper})
  endforeach()
  set(${variable} "${found}" PARENT_SCOPE)
endfunction()
