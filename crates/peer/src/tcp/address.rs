//! Where a node can be reached, as it tells the others.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// When it began: after a restart it has a higher one, and what it says then is newer.
    pub incarnation: u64,
    pub tcp: SocketAddr,
    /// A socket in the file system, for those on the same machine.
    pub unix: Option<PathBuf>,
    pub machine: Machine,
}

/// A machine, as far as its network is one: containers on one machine that have networks of their own
/// are like several.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Machine {
    /// Drawn by the kernel when it was booted.
    boot: [u8; 16],
    /// Which of its networks.
    network: u64,
}

impl Machine {
    /// The one that this process runs on; `None` where the kernel does not tell.
    pub fn this() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
        let network = std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
        Some(Self { boot, network })
    }

    /// One that is no other's.
    pub const UNKNOWN: Self = Self { boot: [0; 16], network: 0 };

    pub fn is_same(self, other: Self) -> bool {
        self == other && self != Self::UNKNOWN
    }
}

/// Path of a Unix socket, which the kernel wants to be this short.
pub const LONGEST_PATH: usize = 107;

impl Address {
    pub fn to_bytes(&self) -> Vec<u8> {
        let ip = match self.tcp.ip() {
            IpAddr::V4(ip) => ip.octets().to_vec(),
            IpAddr::V6(ip) => ip.octets().to_vec(),
        };
        let path = self.unix.as_ref().map_or(&[][..], |path| path.as_os_str().as_bytes());
        let mut bytes = self.incarnation.to_le_bytes().to_vec();
        bytes.extend(self.machine.boot);
        bytes.extend(self.machine.network.to_le_bytes());
        bytes.extend(self.tcp.port().to_le_bytes());
        bytes.push(ip.len() as u8);
        bytes.extend(ip);
        bytes.extend(path);
        bytes
    }

    /// `None` for what [`Address::to_bytes`] did not make.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (&incarnation, bytes) = bytes.split_first_chunk()?;
        let (&boot, bytes) = bytes.split_first_chunk()?;
        let (&network, bytes) = bytes.split_first_chunk()?;
        let (&port, bytes) = bytes.split_first_chunk()?;
        let (&family, bytes) = bytes.split_first()?;
        let (ip, path) = bytes.split_at_checked(family.into())?;
        let ip = match family {
            4 => IpAddr::from(<[u8; 4]>::try_from(ip).ok()?),
            16 => IpAddr::from(<[u8; 16]>::try_from(ip).ok()?),
            _ => return None,
        };
        if path.len() > LONGEST_PATH || path.contains(&0) {
            return None;
        }
        let path = (!path.is_empty()).then(|| std::ffi::OsStr::from_bytes(path).into());
        Some(Self {
            incarnation: u64::from_le_bytes(incarnation),
            tcp: SocketAddr::new(ip, u16::from_le_bytes(port)),
            unix: path,
            machine: Machine { boot, network: u64::from_le_bytes(network) },
        })
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tcp.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_is_the_same_at_the_other_end(
            incarnation: u64, ip: IpAddr, port: u16, path in "(/[a-z]{1,20}){0,5}", network: u64
        ) {
            let unix = (!path.is_empty()).then(|| path.into());
            let machine = Machine { network, ..Machine::this().unwrap() };
            let address = Address { incarnation, tcp: (ip, port).into(), unix, machine };
            let bytes = address.to_bytes();
            prop_assert_eq!(Address::from_bytes(&bytes), Some(address));
            for cut in 0..35 {
                prop_assert_eq!(Address::from_bytes(&bytes[..cut]), None);
            }
        }

        #[test]
        fn any_bytes_are_an_address_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(address) = Address::from_bytes(&bytes) {
                prop_assert_eq!(address.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn this_machine_is_itself_and_an_unknown_one_is_not() {
        let this = Machine::this().unwrap();
        assert!(this.is_same(Machine::this().unwrap()));
        assert!(!this.is_same(Machine { network: 7, ..this }));
        assert!(!Machine::UNKNOWN.is_same(Machine::UNKNOWN));
    }
}
