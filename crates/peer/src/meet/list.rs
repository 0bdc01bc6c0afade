//! Host lists: one host a line, or separated by commas; the first is where rank 0 runs.
//!
//! What mpirun's host files say besides (`node01 slots=4`) is passed over, as are comments (`#`). A
//! host may come with a port (`node01:29700`); only that of the first counts.

use std::net::{ToSocketAddrs, UdpSocket};
use std::path::Path;

use super::place::host_and_port;
use super::{MeetError, Place, World, port_of};

/// Hosts in the order of ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hosts {
    names: Vec<String>,
    port: Option<u16>,
}

impl Hosts {
    pub fn parse(text: &str) -> Result<Self, MeetError> {
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let words = lines.flat_map(|line| line.split(',')).map(str::trim);
        let words = words.filter_map(|word| word.split_whitespace().next());
        let hosts: Vec<_> = words.map(host_and_port).collect::<Result<_, _>>()?;
        let Some(&(_, port)) = hosts.first() else {
            return Err(MeetError::Other(
                "the host list is empty: name the hosts of the job, that of rank 0 first".into(),
            ));
        };
        Ok(Self { names: hosts.into_iter().map(|(name, _)| name).collect(), port })
    }

    pub fn read(path: &Path) -> Result<Self, MeetError> {
        let text = std::fs::read_to_string(path).map_err(|error| {
            MeetError::Other(format!("cannot read the host list {}: {error}", path.display()))
        })?;
        Self::parse(&text)
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Where its ranks meet.
    pub fn place(&self) -> Place {
        let port = self.port.unwrap_or_else(|| port_of(&self.names.join(" ")));
        Place::Point { host: self.names[0].clone(), port }
    }

    /// The world of one process a host, in which the host that `is_here` says yes to is this one.
    pub fn world(&self, is_here: &dyn Fn(&str) -> bool) -> Result<World, MeetError> {
        let mut here = (0..).zip(&self.names).filter(|(_, name)| is_here(name));
        match (here.next(), here.next()) {
            (Some((rank, _)), None) => Ok(World { rank, size: self.names.len() as u32 }),
            (None, _) => Err(MeetError::Other(format!(
                "none of the hosts {} is this machine: correct the host list, or give the rank",
                self.names.join(", ")
            ))),
            (Some((_, one)), Some((_, other))) => Err(MeetError::Other(format!(
                "both {one} and {other} of the host list are this machine: give each process its rank"
            ))),
        }
    }
}

/// Whether a host name or address is one of this machine's.
pub fn is_this_machine(name: &str) -> bool {
    let mine = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let short = |name: &str| name.split('.').next().map(str::to_owned);
    if name == mine || name.parse::<std::net::IpAddr>().is_err() && short(name) == short(&mine) {
        return true;
    }
    // An address that one can bind to is one's own.
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
        assert_eq!(hosts.place(), Place::Point { host: "node01".into(), port: 29700 });
        let world = hosts.world(&|name| name == "node02").unwrap();
        assert_eq!(world, World { rank: 1, size: 3 });
        let none = hosts.world(&|_| false).unwrap_err().to_string();
        assert!(none.contains("none of the hosts node01, node02, node03 is this machine"));
        let two = hosts.world(&|_| true).unwrap_err().to_string();
        assert!(two.contains("both node01 and node02"));
        assert!(Hosts::parse(" # nobody\n").unwrap_err().to_string().contains("empty"));
        assert!(Hosts::parse("a:b").unwrap_err().to_string().contains("HOST:PORT"));
        assert!(Hosts::read(Path::new("/none")).unwrap_err().to_string().contains("/none"));
    }

    #[test]
    fn this_machine_knows_itself() {
        assert!(is_this_machine("127.0.0.1") && is_this_machine("localhost"));
        assert!(!is_this_machine("192.0.2.1") && !is_this_machine("nowhere.invalid"));
    }
}
