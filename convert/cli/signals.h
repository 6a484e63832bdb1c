#pragma once

namespace assay::cli {

/// SIGINT, SIGTERM and SIGHUP (unless ignored, as under nohup): the first one makes
/// stop_requested() true, the second ends the process with 130. SIGPIPE is ignored: writes report
/// it.
void install_signal_handlers();

}  // namespace assay::cli
