//! The client of a request, and the caller that its limits count.

use axum::http::Extensions;
use fencepost::key::Key;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// The other end of a connection.
#[derive(Debug, Clone, Copy)]
pub struct Peer(pub SocketAddr);

impl Peer {
    /// A request that came by no connection is this process's own.
    pub fn of(extensions: &Extensions) -> Self {
        let own = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
        extensions.get().copied().unwrap_or(Self(own))
    }

    /// The caller that limits by address count: the IPv4 address, or the /64 network of an IPv6 address, because one
    /// machine can use every address of its network.
    pub fn network(self) -> String {
        match self.0.ip().to_canonical() {
            IpAddr::V4(ip) => ip.to_string(),
            IpAddr::V6(ip) => format!("{}/64", Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
        }
    }
}

/// The caller whose limits a request counts against: its key, or without a key its network.
pub fn caller(extensions: &Extensions) -> String {
    match extensions.get::<Key>() {
        Some(key) => format!("key `{}`", key.name),
        None => Peer::of(extensions).network(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ipv6_network_is_one_caller() {
        let network = |ip: &str| Peer(SocketAddr::new(ip.parse().unwrap(), 1)).network();
        assert_eq!((network("10.0.0.1"), network("::ffff:10.0.0.1")), ("10.0.0.1".into(), "10.0.0.1".into()));
        assert_eq!(network("2001:db8:1:2:3:4:5:6"), "2001:db8:1:2::/64");
        assert_eq!(network("2001:db8:1:2:ffff::"), "2001:db8:1:2::/64");
        assert_eq!(network("2001:db8:1:3::"), "2001:db8:1:3::/64");
    }
}
