//! Where a node can be reached.

use std::fmt;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use belady_base::environment;
use serde::{Deserialize, Serialize};

/// Where a node listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Address {
    /// When the node started: after a restart it is higher, and the newer address replaces the
    /// older.
    pub incarnation: u64,
    /// Its TCP address.
    pub tcp: SocketAddr,
    /// The path of its Unix socket, for nodes on the same machine.
    pub unix: Option<PathBuf>,
    /// The machine that it runs on.
    pub machine: MachineId,
}

/// A machine, or a network namespace of it: containers with networks of their own count as several
/// machines, and so do processes with different `BELADY_MACHINE`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MachineId {
    /// The kernel's boot id.
    boot: [u8; 16],
    /// The network namespace.
    network: u64,
    /// The digest of `BELADY_MACHINE`; 0 without it.
    name: u64,
}

impl MachineId {
    /// Returns this process's machine; `None` where the kernel does not tell.
    pub fn this() -> Option<Self> {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
        let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
        let boot = u128::from_str_radix(&digits, 16).ok()?.to_be_bytes();
        let network = std::fs::metadata("/proc/thread-self/ns/net").ok()?.ino();
        let name = environment::MACHINE.value();
        let name = name.map_or(0, |name| xxhash_rust::xxh3::xxh3_64(name.as_bytes()));
        Some(Self { boot, network, name })
    }

    /// An unknown machine, which is not the same as any.
    pub const UNKNOWN: Self = Self { boot: [0; 16], network: 0, name: 0 };

    /// Returns whether both are the same known machine.
    pub fn is_same(self, other: Self) -> bool {
        self == other && self != Self::UNKNOWN
    }
}

/// The kernel's limit on the path of a Unix socket.
pub const LONGEST_PATH: usize = 107;

impl Address {
    /// Returns the address as bytes. The path of its Unix socket is UTF-8.
    pub fn to_bytes(&self) -> Vec<u8> {
        postcard::to_stdvec(self).unwrap_or_default()
    }

    /// Returns `None` for bytes that are not an address.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (address, rest) = postcard::take_from_bytes::<Self>(bytes).ok()?;
        let path = address.unix.as_ref().map_or(&[][..], |path| path.as_os_str().as_bytes());
        let is_plausible = path.len() <= LONGEST_PATH && !path.contains(&0);
        (rest.is_empty() && is_plausible).then_some(address)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tcp.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_address_is_decoded_as_it_was_encoded(
            incarnation: u64, ip: IpAddr, port: u16, path in "(/[a-z]{1,20}){0,5}", network: u64
        ) {
            let unix = (!path.is_empty()).then(|| path.into());
            let machine = MachineId { network, ..MachineId::this().unwrap() };
            let address = Address { incarnation, tcp: (ip, port).into(), unix, machine };
            let bytes = address.to_bytes();
            prop_assert_eq!(Address::from_bytes(&bytes), Some(address));
            for cut in 0..bytes.len() {
                prop_assert_eq!(Address::from_bytes(&bytes[..cut]), None);
            }
        }

        #[test]
        fn any_bytes_are_an_address_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(address) = Address::from_bytes(&bytes) {
                prop_assert_eq!(Address::from_bytes(&address.to_bytes()), Some(address));
            }
        }
    }

    #[test]
    fn this_machine_is_itself_and_an_unknown_one_is_not() {
        let this = MachineId::this().unwrap();
        assert!(this.is_same(MachineId::this().unwrap()));
        assert!(!this.is_same(MachineId { network: 7, ..this }));
        assert!(!this.is_same(MachineId { name: 7, ..this }));
        assert!(!MachineId::UNKNOWN.is_same(MachineId::UNKNOWN));
    }
}
