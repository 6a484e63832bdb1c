#include <vector>

#include "convert/cli/command.h"

/// The list of subcommands: each folder's *_main.cpp defines one or more, this is their one index.
int main(int, char**) { return 0; }
