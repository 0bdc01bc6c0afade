//! Rendezvous addresses, as users write them.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use super::RendezvousError;

/// Where the processes of a job find each other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RendezvousAddress {
    /// The host and port where rank 0 listens.
    Server {
        /// A host name or address.
        host: String,
        /// The port.
        port: u16,
    },
    /// A directory that all ranks see.
    Directory(PathBuf),
}

/// Returns the port of a job that has none given. Ranks that know the job's name know the port.
pub fn port_of(job: &str) -> u16 {
    // Below Linux's ephemeral ports, and outside Kubernetes' node ports.
    20_000 + (xxhash_rust::xxh3::xxh3_64(job.as_bytes()) % 10_000) as u16
}

/// Parses `host`, `host:port`, `[::1]` or `[::1]:port`.
pub(super) fn host_and_port(text: &str) -> Result<(String, Option<u16>), RendezvousError> {
    let wrong = || {
        RendezvousError::Other(format!(
            "`{text}` is not a host and port: write HOST:PORT, such as node01:29700 or [::1]:29700"
        ))
    };
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']').ok_or_else(wrong)?;
            let port = match rest.strip_prefix(':') {
                Some(port) => Some(port),
                None if rest.is_empty() => None,
                None => return Err(wrong()),
            };
            (host, port)
        }
        None => match text.split_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (text, None),
        },
    };
    let port = port.map(|port| port.parse::<u16>().map_err(|_| wrong())).transpose()?;
    if host.is_empty() || host.contains(|it: char| it.is_whitespace() || "/,@".contains(it)) {
        return Err(wrong());
    }
    Ok((host.to_owned(), port))
}

impl FromStr for RendezvousAddress {
    type Err = RendezvousError;

    /// Parses `HOST:PORT`, or the path of a directory, which contains a slash or exists.
    fn from_str(text: &str) -> Result<Self, RendezvousError> {
        let text = text.trim();
        if text.contains('/') || (!text.contains(':') && Path::new(text).is_dir()) {
            return Ok(Self::Directory(PathBuf::from(text)));
        }
        match host_and_port(text)? {
            (host, Some(port)) if port > 0 => Ok(Self::Server { host, port }),
            _ => Err(RendezvousError::Other(format!(
                "`{text}` names no port: write HOST:PORT with the same port on every \
                 rank, or the path of a directory that all ranks share"
            ))),
        }
    }
}

impl fmt::Display for RendezvousAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Server { host, port } => write!(f, "{host}:{port}"),
            Self::Directory(path) => write!(f, "{}", path.display()),
        }
    }
}

/// An address on the loopback where nothing listens, at a port that the system never assigns by
/// itself.
#[cfg(test)]
pub(crate) fn free() -> RendezvousAddress {
    use std::sync::atomic::{AtomicU32, Ordering};
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        let next = NEXT.fetch_add(1, Ordering::Relaxed);
        let port = port_of(&format!("test {} {next}", std::process::id()));
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return RendezvousAddress::Server { host: "127.0.0.1".into(), port };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_parsed_as_users_write_them() {
        for text in ["node01:29700", "10.0.0.1:1", "[::1]:29700", "/home/me/meet", "./here"] {
            assert_eq!(text.parse::<RendezvousAddress>().unwrap().to_string(), text);
        }
        for text in
            ["", ":1", "node01", "node01:", "node01:x", "node01:70000", "::1", "[::1", "a b:1"]
        {
            let error = text.parse::<RendezvousAddress>().unwrap_err().to_string();
            assert!(error.contains("HOST:PORT"), "{error}");
        }
        // Tests run in their crate's directory.
        assert_eq!("src".parse(), Ok(RendezvousAddress::Directory("src".into())));
        assert!(
            "node01:0"
                .parse::<RendezvousAddress>()
                .unwrap_err()
                .to_string()
                .contains("names no port")
        );
    }

    #[test]
    fn jobs_have_ports_of_their_own() {
        assert_eq!(port_of("slurm 17.0"), port_of("slurm 17.0"));
        assert_ne!(port_of("slurm 17.0"), port_of("slurm 17.1"));
        assert!(
            (0..1000).map(|job| port_of(&job.to_string())).all(|it| (20_000..30_000).contains(&it))
        );
    }
}
