//! Listening address of the control server, and the address by which ranks reach it.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, ToSocketAddrs, UdpSocket};

use lambert_config::run::ControlChannel;

use crate::decide::Placement;
use crate::host;

/// The control server cannot listen.
#[derive(Debug, thiserror::Error)]
pub enum AddressError {
    /// No port is available.
    #[error("cannot listen on {address} for the ranks{}", ports.map_or(String::new(), |[first, last]| format!(" (cluster.control.ports: {first} to {last}; free one of these ports or choose others)")))]
    Listen {
        /// IP address.
        address: IpAddr,
        /// Permitted ports, if restricted.
        ports: Option<[u16; 2]>,
        /// System error.
        source: std::io::Error,
    },
    /// The configured interface does not exist or has no address.
    #[error("cluster.control.interface: no interface {name} with an address on this host; it has {there}")]
    Interface {
        /// Name of the interface.
        name: String,
        /// Existing interfaces.
        there: String,
    },
    /// The interfaces cannot be listed.
    #[error("cannot list the network interfaces")]
    Interfaces(#[source] std::io::Error),
}

/// Binds a listener for ranks with this placement. Returns the listener and its URL.
pub fn listen(channel: &ControlChannel, placement: &Placement) -> Result<(TcpListener, String), AddressError> {
    let (ip, name) = match placement {
        Placement::Here => loopback(),
        Placement::Hosts(_) | Placement::Allocation(_) => elsewhere(channel, placement)?,
    };
    let (listener, port) = bind(ip, channel.ports)?;
    Ok((listener, format!("http://{name}:{port}")))
}

fn loopback() -> (IpAddr, String) {
    let four = IpAddr::V4(Ipv4Addr::LOCALHOST);
    let ip = if TcpListener::bind((four, 0)).is_ok() { four } else { IpAddr::V6(Ipv6Addr::LOCALHOST) };
    (ip, in_url(&ip.to_string()))
}

/// Returns the address to bind to and the host part of the URL. The address to bind to is that of the configured
/// interface, or the wildcard address without a configured interface. The host part is the configured address, else the
/// address of the configured interface, else the local address of the route to the other hosts, else the name of this
/// host.
fn elsewhere(channel: &ControlChannel, placement: &Placement) -> Result<(IpAddr, String), AddressError> {
    let interface = channel.interface.as_deref().map(of_interface).transpose()?;
    let name = match (&channel.address, interface) {
        (Some(address), _) => address.clone(),
        (None, Some(ip)) => ip.to_string(),
        (None, None) => towards(placement).map_or_else(host::name, |ip| ip.to_string()),
    };
    let all = match UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        // On Linux an IPv6 socket accepts IPv4 connections, too.
        Ok(_) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        Err(_) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
    };
    Ok((interface.unwrap_or(all), in_url(&name)))
}

/// Returns the local address of the route to the first other host. `connect` on a UDP socket sends no packet.
fn towards(placement: &Placement) -> Option<IpAddr> {
    let Placement::Hosts(hosts) = placement else { return None };
    let reach = |name: &str| {
        let other = (name, 9).to_socket_addrs().ok()?.next()?;
        let any: IpAddr = if other.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
        let socket = UdpSocket::bind((any, 0)).ok()?;
        socket.connect(other).ok()?;
        Some(socket.local_addr().ok()?.ip())
    };
    hosts.iter().filter_map(|host| reach(&host.name)).find(|ip| !ip.is_loopback())
}

fn of_interface(name: &str) -> Result<IpAddr, AddressError> {
    let mut all = if_addrs::get_if_addrs().map_err(AddressError::Interfaces)?;
    // Link-local addresses come last, because some hosts cannot reach them. IPv4 addresses come before IPv6 addresses.
    all.sort_by_key(|interface| (interface.is_link_local(), interface.ip().is_ipv6()));
    let found = all.iter().find(|interface| interface.name == name);
    found.map(|interface| interface.ip()).ok_or_else(|| {
        let there: Vec<_> = all.iter().map(|interface| format!("{} ({})", interface.name, interface.ip())).collect();
        AddressError::Interface { name: name.to_owned(), there: there.join(", ") }
    })
}

fn bind(ip: IpAddr, ports: Option<[u16; 2]>) -> Result<(TcpListener, u16), AddressError> {
    let mut last = std::io::ErrorKind::AddrInUse.into();
    let range = ports.map_or(0..=0, |[first, last]| first..=last);
    for port in range {
        let bound = TcpListener::bind(SocketAddr::new(ip, port)).and_then(|listener| {
            listener.set_nonblocking(true)?;
            let port = listener.local_addr()?.port();
            Ok((listener, port))
        });
        match bound {
            Ok(bound) => return Ok(bound),
            Err(error) => last = error,
        }
    }
    Err(AddressError::Listen { address: ip, ports, source: last })
}

/// Formats an address for a URL: IPv6 in brackets.
fn in_url(name: &str) -> String {
    if name.contains(':') && !name.starts_with('[') { format!("[{name}]") } else { name.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lambert_config::run::Host;

    fn hosts(name: &str) -> Placement {
        Placement::Hosts(vec![Host { name: name.into(), ranks: 1 }])
    }

    #[test]
    fn one_host_uses_the_loopback_interface() {
        let (listener, url) = listen(&ControlChannel::default(), &Placement::Here).unwrap();
        assert!(listener.local_addr().unwrap().ip().is_loopback());
        assert!(url.starts_with("http://127.0.0.1:"), "{url}");
    }

    #[test]
    fn several_hosts_use_the_configured_address() {
        let url = |address: &str| {
            let url = listen(&address_of(address), &hosts("127.0.0.1")).unwrap().1;
            url.rsplit_once(':').unwrap().0.to_owned()
        };
        assert_eq!(url("head.cluster"), "http://head.cluster");
        assert_eq!(url("fd00::1"), "http://[fd00::1]");
    }

    fn address_of(address: &str) -> ControlChannel {
        ControlChannel { address: Some(address.into()), ..ControlChannel::default() }
    }

    #[test]
    fn ports_come_from_the_range() {
        let taken = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let held = TcpListener::bind(("127.0.0.1", taken)).unwrap();
        let channel = |last| ControlChannel { ports: Some([taken, last]), ..ControlChannel::default() };
        let refused = listen(&channel(taken), &Placement::Here).unwrap_err().to_string();
        assert_eq!(
            refused,
            format!(
                "cannot listen on 127.0.0.1 for the ranks (cluster.control.ports: {taken} to {taken}; free one of these ports or choose others)"
            )
        );
        let (_, url) = listen(&channel(taken.saturating_add(200)), &Placement::Here).unwrap();
        let port: u16 = url.rsplit_once(':').unwrap().1.parse().unwrap();
        assert!((taken..=taken.saturating_add(200)).contains(&port) && port != taken);
        drop(held);
    }

    #[test]
    fn an_interface_is_found_by_its_name() {
        let channel = |name: &str| ControlChannel { interface: Some(name.into()), ..ControlChannel::default() };
        let (listener, _) = listen(&channel("lo"), &hosts("127.0.0.1")).unwrap();
        assert!(listener.local_addr().unwrap().ip().is_loopback());
        let refused = listen(&channel("nowhere9"), &hosts("127.0.0.1")).unwrap_err().to_string();
        assert!(refused.contains("no interface nowhere9") && refused.contains("lo (127.0.0.1)"), "{refused}");
    }
}
