//! SIGTERM on a rank: from the launcher it ends the rank, from another process it is reported to the coordinator.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lambert_collective::launchers::Launcher;
use rustix::process::Pid;
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

/// Handles SIGTERM from now on. SIGTERM sets the returned flag instead of ending the process. A service manager sends
/// SIGTERM to all processes at once. On preemption, a batch system sends SIGTERM to the ranks first. The coordinator
/// then makes all ranks save after the same step. SIGTERM from the launcher still ends this rank.
pub(super) fn flag() -> Arc<AtomicBool> {
    let terminated = Arc::new(AtomicBool::new(false));
    let launcher = lambert_collective::world::detect().map(|world| world.launcher);
    let parent = rustix::process::getppid().map_or(0, Pid::as_raw_pid);
    let flag = Arc::clone(&terminated);
    let listen = move |mut signals: SignalsInfo<WithOrigin>| {
        for signal in signals.forever() {
            match signal.process {
                Some(sender) if ends_process(launcher, sender.pid, parent) => {
                    let _ = signal_hook::low_level::emulate_default_handler(SIGTERM);
                }
                _ => flag.store(true, Ordering::Relaxed),
            }
        }
    };
    let start = |signals| std::thread::Builder::new().name("sigterm".to_owned()).spawn(move || listen(signals));
    if let Err(error) = SignalsInfo::new([SIGTERM]).and_then(start) {
        tracing::warn!("cannot handle SIGTERM, which will end this rank: {error}");
    }
    terminated
}

/// True if SIGTERM from process `sender` ends this process. SIGTERM ends this process if the sender is the parent or
/// another process of the launcher. Some launchers forward the SIGTERM of the batch system. For these launchers the
/// result is false, because the two signals cannot be distinguished.
pub(super) fn ends_process(launcher: Option<&Launcher>, sender: i32, parent: i32) -> bool {
    let Some(launcher) = launcher else { return sender == parent };
    let name = std::fs::read_to_string(format!("/proc/{sender}/comm")).unwrap_or_default();
    !launcher.passes_on_sigterm && (sender == parent || launcher.processes.contains(&name.trim()))
}
