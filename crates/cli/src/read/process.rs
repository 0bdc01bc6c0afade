//! What this process has used so far, as the kernel says.

use rustix::time::{ClockId, clock_gettime};

/// Seconds of all threads on all cores.
pub fn cpu_seconds() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// The most memory at any time, in bytes.
pub fn peak_rss() -> u64 {
    status("VmHWM")
}

/// Memory now that no file stands behind, in bytes.
pub fn anonymous() -> u64 {
    status("RssAnon")
}

/// 0 where the kernel does not say: a figure that is missing must not end a run.
fn status(key: &str) -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    field(&text, key).unwrap_or(0)
}

/// A line such as `VmHWM:      1234 kB`.
fn field(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    let kilobytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_says() {
        assert!(cpu_seconds() > 0.0);
        assert!(anonymous() > 0 && anonymous() <= peak_rss());
        assert_eq!(field("VmHWMx:\t1 kB\nVmHWM:\t  12 kB\n", "VmHWM"), Some(12 * 1024));
        assert_eq!(field("VmHWM:\tmany\n", "VmHWM"), None);
    }
}
