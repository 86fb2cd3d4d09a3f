# Builds of llama-cpp-python what Corral uses, in half the time. CMake includes this file after each project() command
# (CMAKE_PROJECT_INCLUDE); the compiled kernels are the same.
#
# Left out: llama-common and cpp-httplib, which only programs of llama.cpp use. Compiled in groups and with -O1: code
# that builds graphs, a few microseconds a step, and is two thirds of all files. Copies of each library under its
# versioned names are left out too: a wheel stores them as whole files.

function(corral_simplify_targets)
  foreach(target llama mtmd)
    get_target_property(sources ${target} SOURCES)
    get_target_property(folder ${target} SOURCE_DIR)
    list(FILTER sources INCLUDE REGEX "[.]cpp$")
    list(FILTER sources EXCLUDE REGEX "models/")
    list(TRANSFORM sources PREPEND ${folder}/)
    set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
    set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 16)
    if(CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-O1>)
      set_source_files_properties(${sources} TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS -O3)
    endif()
  endforeach()
  corral_remove_versions(${CMAKE_SOURCE_DIR})
endfunction()

function(corral_remove_versions folder)
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    get_target_property(type ${target} TYPE)
    if(type MATCHES "^(SHARED|MODULE)_LIBRARY$")
      set_property(TARGET ${target} PROPERTY VERSION)
      set_property(TARGET ${target} PROPERTY SOVERSION)
      set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN" BUILD_WITH_INSTALL_RPATH TRUE)
    endif()
  endforeach()
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(subfolder IN LISTS folders)
    corral_remove_versions(${subfolder})
  endforeach()
endfunction()

if(PROJECT_NAME STREQUAL "llama_cpp")
  # Backends in files of their own (GGML_BACKEND_DL) must be where Corral looks for them.
  set(CMAKE_INSTALL_BINDIR llama_cpp/lib CACHE PATH "Programs and backends" FORCE)
  set(CMAKE_INSTALL_LIBDIR llama_cpp/lib CACHE PATH "Libraries" FORCE)
  set(CMAKE_INSTALL_INCLUDEDIR llama_cpp/include CACHE PATH "Headers" FORCE)
  cmake_language(DEFER CALL corral_simplify_targets)
elseif(PROJECT_NAME STREQUAL "llama.cpp")
  set(LLAMA_BUILD_COMMON OFF)  # the binding forces the cache entries, which variables hide
  set(LLAMA_ALL_WARNINGS OFF)
endif()
