#pragma once

#include "convert/core/isa.h"  // IWYU pragma: export
