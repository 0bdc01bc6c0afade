//! What a process holds, as the kernel tells it.

/// At one moment.
pub struct Usage {
    /// Anonymous and shared memory; files that are mapped are none of it.
    pub memory: u64,
    pub files: usize,
    pub threads: u64,
}

pub fn usage() -> std::io::Result<Usage> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let field = |name: &str| -> u64 {
        let line = status.lines().find(|line| line.starts_with(name));
        line.and_then(|line| line.split_whitespace().nth(1)?.parse().ok()).unwrap_or(0)
    };
    let files = std::fs::read_dir("/proc/self/fd")?.count();
    let memory = (field("RssAnon:") + field("RssShmem:")) * 1024;
    Ok(Usage { memory, files, threads: field("Threads:") })
}

/// The allocator returns what was freed to the system; others than glibc's are not asked.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    // SAFETY: `malloc_trim` takes a number and may be called by any thread at any time.
    unsafe {
        libc::malloc_trim(0);
    }
}
