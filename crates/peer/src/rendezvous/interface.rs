//! The address of this machine that a job uses.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, UdpSocket};

use super::RendezvousError;
use super::launcher::Variables;

/// Where to listen, as users write it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Bind {
    /// An address of this machine.
    Address(IpAddr),
    /// The name of an interface, such as `eth0`.
    Interface(String),
}

impl From<&str> for Bind {
    fn from(text: &str) -> Self {
        let text = text.trim();
        text.parse().map_or_else(|_| Self::Interface(text.to_owned()), Self::Address)
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
    /// Returns where to listen by `BELADY_BIND`.
    pub fn given(variables: &Variables) -> Option<Self> {
        let bind = variables.get("BELADY_BIND").filter(|bind| !bind.is_empty());
        bind.map(|bind| bind.as_str().into())
    }

    /// Returns the address to listen at.
    pub fn address(&self) -> Result<IpAddr, RendezvousError> {
        match self {
            Self::Address(address) => Ok(*address),
            Self::Interface(name) => of_interface(name),
        }
    }
}

fn of_interface(name: &str) -> Result<IpAddr, RendezvousError> {
    let all = addresses();
    let mine = || all.iter().filter(|(other, _)| other == name).map(|(_, address)| *address);
    // Most clusters use IPv4; a link-local address alone does not reach another machine.
    let found = mine().find(IpAddr::is_ipv4).or_else(|| mine().find(|it| !is_link_local(it)));
    found.ok_or_else(|| {
        let mut names: Vec<&str> = all.iter().map(|(name, _)| name.as_str()).collect();
        names.sort_unstable();
        names.dedup();
        RendezvousError::Other(format!(
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

/// Returns the address from which this machine reaches another. Sends nothing.
pub fn towards(other: IpAddr) -> Option<IpAddr> {
    let any: IpAddr = match other {
        IpAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        IpAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).ok()?;
    // Any port does for a route.
    socket.connect((other, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_unspecified()).then_some(address)
}

/// Returns the address by which other machines most likely reach this one: that of the default
/// route, else of any interface, else the loopback's.
pub fn usual() -> IpAddr {
    // Reserved for documentation, so the route to it is the default route.
    let outside = IpAddr::from(Ipv4Addr::new(192, 0, 2, 1));
    let is_outer = |it: &IpAddr| !it.is_loopback() && !is_link_local(it);
    towards(outside)
        .filter(is_outer)
        .or_else(|| addresses().into_iter().map(|(_, address)| address).find(is_outer))
        .unwrap_or_else(|| Ipv4Addr::LOCALHOST.into())
}

/// Returns the names and addresses of interfaces that are up.
fn addresses() -> Vec<(String, IpAddr)> {
    let all = if_addrs::get_if_addrs().unwrap_or_default();
    let up = all.into_iter().filter(if_addrs::Interface::is_oper_up);
    up.map(|interface| (interface.name.clone(), interface.ip())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interfaces_are_found_by_name_and_others_are_named() {
        let loopback = Bind::from("lo");
        assert_eq!(loopback.address().unwrap(), IpAddr::from(Ipv4Addr::LOCALHOST));
        let given = Bind::from(" 10.1.2.3");
        assert_eq!(given.address().unwrap().to_string(), "10.1.2.3");
        let none = Bind::from("nonesuch0");
        let error = none.address().unwrap_err().to_string();
        assert!(error.contains("no interface `nonesuch0`") && error.contains("lo"), "{error}");
    }

    #[test]
    fn the_environment_names_where_to_listen() {
        let variables = |bind: &str| Variables::from([("BELADY_BIND".into(), bind.into())]);
        assert_eq!(Bind::given(&variables("ib0")), Some(Bind::Interface("ib0".into())));
        assert_eq!(Bind::given(&variables("")), None);
    }

    #[test]
    fn this_machine_reaches_itself_over_the_loopback() {
        let here = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert_eq!(towards(here), Some(here));
        assert!(!usual().is_unspecified());
    }
}
