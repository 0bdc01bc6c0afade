//! Host lists: one host a line, or separated by commas; the first one runs rank 0.
//!
//! Other words of mpirun's host files (`node01 slots=4`) and comments (`#`) are ignored. A host may
//! have a port (`node01:29700`); only that of the first is used.

use std::net::{ToSocketAddrs, UdpSocket};
use std::path::Path;

use super::address::host_and_port;
use super::{JobWorld, RendezvousAddress, RendezvousError, port_of};

/// Hosts in the order of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    names: Vec<String>,
    port: Option<u16>,
}

impl Hosts {
    /// Parses a host list.
    pub fn parse(text: &str) -> Result<Self, RendezvousError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words = lines.flat_map(|line| line.split(',')).map(str::trim);
        let words = words.filter_map(|word| word.split_whitespace().next());
        let hosts: Vec<_> = words.map(host_and_port).collect::<Result<_, _>>()?;
        let Some(&(_, port)) = hosts.first() else {
            return Err(RendezvousError::Other(
                "the host list is empty: name the hosts of the job, that of rank 0 first".into(),
            ));
        };
        Ok(Self { names: hosts.into_iter().map(|(name, _)| name).collect(), port })
    }

    /// Reads a host list from a file.
    pub fn read(path: &Path) -> Result<Self, RendezvousError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            RendezvousError::Other(format!("cannot read the host list {}: {error}", path.display()))
        })?;
        Self::parse(&text)
    }

    /// Returns the names of the hosts.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Returns the rendezvous address of the hosts.
    pub fn address(&self) -> RendezvousAddress {
        let port = self.port.unwrap_or_else(|| port_of(&self.names.join(" ")));
        RendezvousAddress::Server { host: self.names[0].clone(), port }
    }

    /// Returns the world of one process a host; this process runs on the host for which `is_here`
    /// is true.
    pub fn world(&self, is_here: &dyn Fn(&str) -> bool) -> Result<JobWorld, RendezvousError> {
        let mut here = (0..).zip(&self.names).filter(|(_, name)| is_here(name));
        match (here.next(), here.next()) {
            (Some((rank, _)), None) => Ok(JobWorld { rank, size: self.names.len() as u32 }),
            (None, _) => Err(RendezvousError::Other(format!(
                "none of the hosts {} is this machine: correct the host list, or give the rank",
                self.names.join(", ")
            ))),
            (Some((_, one)), Some((_, other))) => Err(RendezvousError::Other(format!(
                "both {one} and {other} of the host list are this machine: give each process its \
                 rank"
            ))),
        }
    }
}

/// Returns whether a host name or address belongs to this machine.
pub fn is_this_machine(name: &str) -> bool {
    let mine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = |name: &str| name.split('.').next().map(str::to_owned);
    if name == mine || name.parse::<std::net::IpAddr>().is_err() && short(name) == short(&mine) {
        return true;
    }
    // A process can bind only to its own machine's addresses.
    (name, 0).to_socket_addrs().is_ok_and(|mut all| all.any(|it| UdpSocket::bind(it).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_lists_of_all_kinds() {
        let hosts =
            Hosts::parse("# cluster\nnode01:29700 slots=4\n\nnode02, node03 # last\n").unwrap();
        assert_eq!(hosts.names(), ["node01", "node02", "node03"]);
        assert_eq!(
            hosts.address(),
            RendezvousAddress::Server { host: "node01".into(), port: 29700 }
        );
        let world = hosts.world(&|name| name == "node02").unwrap();
        assert_eq!(world, JobWorld { rank: 1, size: 3 });
        let none = hosts.world(&|_| false).unwrap_err().to_string();
        assert!(none.contains("none of the hosts node01, node02, node03 is this machine"));
        let two = hosts.world(&|_| true).unwrap_err().to_string();
        assert!(two.contains("both node01 and node02"));
        assert!(Hosts::parse(" # none\n").unwrap_err().to_string().contains("empty"));
        assert!(Hosts::parse("a:b").unwrap_err().to_string().contains("HOST:PORT"));
        assert!(Hosts::read(Path::new("/none")).unwrap_err().to_string().contains("/none"));
    }

    #[test]
    fn this_machine_recognises_its_own_names() {
        assert!(is_this_machine("127.0.0.1") && is_this_machine("localhost"));
        assert!(!is_this_machine("192.0.2.1") && !is_this_machine("nowhere.invalid"));
    }
}
