//! The CPU time and memory that this process has used, from the kernel.

use rustix::time::{ClockId, clock_gettime};

/// Returns the CPU time of all threads.
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Returns the peak resident memory in bytes.
pub fn peak_rss() -> u64 {
    status("VmHWM")
}

/// Returns the current anonymous resident memory in bytes.
pub fn anonymous() -> u64 {
    status("RssAnon")
}

/// Reads a field of `/proc/self/status`; 0 if it is missing, which must not end a run.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&text, key).unwrap_or(0)
}

/// Parses a line such as `VmHWM:      1234 kB`.
fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_and_memory_are_read_from_the_kernel() {
        assert!(cpu_seconds() > 0.0);
        assert!(anonymous() > 0 && anonymous() <= peak_rss());
        assert_eq!(field("VmHWMx:\t1 kB\nVmHWM:\t  12 kB\n", "VmHWM"), Some(12 * 1024));
        assert_eq!(field("VmHWM:\tmany\n", "VmHWM"), None);
    }
}
