# Called at build time with SOURCE_DIR and OUTPUT. The id is that of the commit, "-dirty" after it
# where tracked files differ from it; "unknown" outside a checkout.
execute_process(
  COMMAND git -C ${SOURCE_DIR} describe --always --dirty --abbrev=12 --exclude=*
  OUTPUT_VARIABLE git_id OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE status)
if(NOT status EQUAL 0)
  set(git_id unknown)
endif()
set(text "#pragma once\n#define ASSAY_GIT_ID \"${git_id}\"\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} before)
endif()
if(NOT text STREQUAL before)
  file(WRITE ${OUTPUT} "${text}")
endif()
