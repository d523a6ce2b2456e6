// Version of the library.
#pragma once

#define BDCP_VERSION_MAJOR 0
#define BDCP_VERSION_MINOR 1
#define BDCP_VERSION_PATCH 0
#define BDCP_VERSION_STRING "0.1.0"
