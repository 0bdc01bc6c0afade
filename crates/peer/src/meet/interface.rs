//! Which address of this machine a job uses.

use std::ffi::CStr;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};
use std::str::FromStr;

use super::MeetError;

/// Where to listen, as people write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    Address(IpAddr),
    /// Such as `eth0`.
    Interface(String),
}

impl FromStr for Bind {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let text = text.trim();
        Ok(text.parse().map_or_else(|_| Self::Interface(text.to_owned()), Self::Address))
    }
}

impl fmt::Display for Bind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Address(address) => address.fmt(f),
            Self::Interface(name) => f.write_str(name),
        }
    }
}

impl Bind {
    /// The address that is meant.
    pub fn address(&self) -> Result<IpAddr, MeetError> {
        match self {
            Self::Address(address) => Ok(*address),
            Self::Interface(name) => of_interface(name),
        }
    }
}

fn of_interface(name: &str) -> Result<IpAddr, MeetError> {
    let all = addresses();
    let mine = || all.iter().filter(|(other, _)| other == name).map(|(_, address)| *address);
    // Most clusters are of IPv4; link-local addresses need more than an address to be reached.
    let found = mine().find(IpAddr::is_ipv4).or_else(|| mine().find(|it| !is_link_local(it)));
    found.ok_or_else(|| {
        let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        MeetError::Other(format!(
            "this machine has no interface `{name}` with an address to listen at: it has {}",
            names.join(", ")
        ))
    })
}

fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    }
}

/// The address of this machine from which one reaches another. Nothing is sent.
pub fn towards(other: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match other {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Any port will do to find the way.
    socket.connect((other, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

/// The address that others are most likely to reach this machine by: that of the default route, else
/// of any interface, else the loopback's.
pub fn usual() -> IpAddr {
    // Reserved for documentation, so it lies behind the default route.
    let outside = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
    let is_outer = |it: &IpAddr| !it.is_loopback() && !is_link_local(it);
    towards(outside)
        .filter(is_outer)
        .or_else(|| addresses().into_iter().map(|(_, address)| address).find(is_outer))
        .unwrap_or_else(|| Ipv4Addr::LOCALHOST.into())
}

/// Interfaces that are up, and their addresses.
fn addresses() -> Vec<(String, IpAddr)> {
    let mut first: *mut libc::ifaddrs = std::ptr::null_mut();
    // SAFETY: it writes a list to where `first` is, which is given back below.
    if unsafe { libc::getifaddrs(&raw mut first) } != 0 {
        return vec![];
    }
    let mut all = vec![];
    let mut next = first;
    // SAFETY: the list is whole until it is given back, and its end is null.
    while let Some(entry) = unsafe { next.as_ref() } {
        if entry.ifa_flags & libc::IFF_UP as libc::c_uint != 0
            && let Some(address) = address_of(entry)
        {
            // SAFETY: every entry has a name that ends with a zero.
            let name = unsafe { CStr::from_ptr(entry.ifa_name) };
            all.push((name.to_string_lossy().into_owned(), address));
        }
        next = entry.ifa_next;
    }
    // SAFETY: the list that was got above, once.
    unsafe { libc::freeifaddrs(first) };
    all
}

fn address_of(entry: &libc::ifaddrs) -> Option<IpAddr> {
    // SAFETY: null, or an address that lives as long as the entry.
    let family = i32::from(unsafe { entry.ifa_addr.as_ref() }?.sa_family);
    match family {
        libc::AF_INET => {
            // SAFETY: the family says what it is. It may not be aligned for it.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in>().read_unaligned() };
            Some(Ipv4Addr::from(u32::from_be(address.sin_addr.s_addr)).into())
        }
        libc::AF_INET6 => {
            // SAFETY: as above.
            let address = unsafe { entry.ifa_addr.cast::<libc::sockaddr_in6>().read_unaligned() };
            Some(Ipv6Addr::from(address.sin6_addr.s6_addr).into())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_name_and_others_are_named() {
        let loopback: Bind = "lo".parse().unwrap();
        assert_eq!(loopback.address().unwrap(), IpAddr::from(Ipv4Addr::LOCALHOST));
        let given: Bind = " 10.1.2.3".parse().unwrap();
        assert_eq!(given.address().unwrap().to_string(), "10.1.2.3");
        let none: Bind = "nonesuch0".parse().unwrap();
        let error = none.address().unwrap_err().to_string();
        assert!(error.contains("no interface `nonesuch0`") && error.contains("lo"), "{error}");
    }

    #[test]
    fn the_way_to_oneself_is_the_loopback() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(towards(here), Some(here));
        assert!(!usual().is_unspecified());
    }
}
