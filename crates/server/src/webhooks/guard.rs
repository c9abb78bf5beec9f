//! Which addresses may be called. Whoever submits a job chooses where its webhook goes; that must not be a way to reach what
//! only this machine or its network can.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    str::FromStr,
};
use thiserror::Error;

/// What may be called besides the public Internet.
#[derive(Clone, Debug, Default)]
pub struct Guard {
    /// Everything that a connection can be made to.
    pub allow_private: bool,
    pub allow: Vec<Network>,
}

/// Why an address may not be called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("{address} is not allowed: it is {what}")]
pub struct Forbidden {
    pub address: IpAddr,
    pub what: &'static str,
}

/// Addresses that begin alike, such as 10.1.0.0/16.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    base: IpAddr,
    prefix: u32,
}

impl Guard {
    pub fn check(&self, address: IpAddr) -> Result<(), Forbidden> {
        let plain = address.to_canonical();
        let Some(what) = special(plain) else { return Ok(()) };
        let reachable = !plain.is_multicast() && !plain.is_unspecified();
        let allowed = self.allow_private && reachable || self.allow.iter().any(|network| network.contains(plain));
        if allowed { Ok(()) } else { Err(Forbidden { address, what }) }
    }
}

impl Network {
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.base, address) {
            (IpAddr::V4(base), IpAddr::V4(address)) => {
                same(base.to_bits().into(), address.to_bits().into(), 32 - self.prefix)
            }
            (IpAddr::V6(base), IpAddr::V6(address)) => same(base.to_bits(), address.to_bits(), 128 - self.prefix),
            _ => false,
        }
    }
}

/// Whether two numbers are the same but for their last `rest` bits.
fn same(one: u128, other: u128, rest: u32) -> bool {
    (one ^ other).checked_shr(rest).unwrap_or(0) == 0
}

impl FromStr for Network {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("'{text}' is not a network; write it like 10.1.0.0/16, fd00::/8 or 127.0.0.1");
        let (base, prefix) = text.split_once('/').map_or((text, None), |(base, prefix)| (base, Some(prefix)));
        let base: IpAddr = base.parse().map_err(|_| wrong())?;
        let bits = if base.is_ipv4() { 32 } else { 128 };
        let prefix = prefix.map_or(Ok(bits), |prefix| prefix.parse().map_err(|_| wrong()))?;
        if prefix > bits { Err(wrong()) } else { Ok(Self { base, prefix }) }
    }
}

impl fmt::Display for Network {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.base, self.prefix)
    }
}

/// What is special about an address that is not of the public Internet: the registries of IANA for special purposes.
fn special(address: IpAddr) -> Option<&'static str> {
    match address {
        IpAddr::V4(address) => special_v4(address),
        IpAddr::V6(address) => special_v6(address),
    }
}

fn special_v4(address: Ipv4Addr) -> Option<&'static str> {
    let [a, b, c, _] = address.octets();
    Some(match (a, b, c) {
        (0, ..) => "unspecified",
        (10, ..) | (172, 16..=31, _) | (192, 168, _) => "private",
        (100, 64..=127, _) => "shared by a carrier's customers",
        (127, ..) => "loopback",
        (169, 254, _) => "link-local",
        (192, 0, 0) | (192, 88, 99) => "reserved",
        (192, 0, 2) | (198, 51, 100) | (203, 0, 113) => "for documentation",
        (198, 18..=19, _) => "for benchmarks",
        (224..=239, ..) => "multicast",
        (240.., ..) => "reserved",
        _ => return None,
    })
}

fn special_v6(address: Ipv6Addr) -> Option<&'static str> {
    let segments = address.segments();
    let last = |segments: [u16; 2]| Ipv4Addr::from_bits(u32::from(segments[0]) << 16 | u32::from(segments[1]));
    match segments {
        [0, 0, 0, 0, 0, 0, 0, 0] => Some("unspecified"),
        [0, 0, 0, 0, 0, 0, 0, 1] => Some("loopback"),
        // An IPv4 address in other clothes: mapped, compatible, translated, or of a NAT64.
        [0, 0, 0, 0, 0, 0xffff, a, b]
        | [0, 0, 0, 0, 0, 0, a, b]
        | [0, 0, 0, 0, 0xffff, 0, a, b]
        | [0x64, 0xff9b, 0, 0, 0, 0, a, b] => special_v4(last([a, b])),
        // 6to4 has one in the middle.
        [0x2002, a, b, ..] => special_v4(last([a, b])),
        [0xfc00..=0xfdff, ..] => Some("private"),
        [0xfe80..=0xfebf, ..] => Some("link-local"),
        [0xfec0..=0xfeff, ..] => Some("site-local"),
        [0xff00..=0xffff, ..] => Some("multicast"),
        [0x2001, 0x0db8, ..] | [0x3fff, 0..=0x0fff, ..] => Some("for documentation"),
        // Teredo, benchmarks and others that a protocol uses for itself.
        [0x2001, 0..=0x01ff, ..] => Some("reserved"),
        [0x2000..=0x3fff, ..] => None,
        _ => Some("reserved"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verdict(guard: &Guard, address: &str) -> Result<(), &'static str> {
        guard.check(address.parse().expect("an address")).map_err(|forbidden| forbidden.what)
    }

    #[test]
    fn only_the_public_internet_is_called_by_default() {
        let guard = Guard::default();
        let public = [
            "1.1.1.1",
            "8.8.8.8",
            "9.255.255.255",
            "11.0.0.0",
            "100.63.255.255",
            "100.128.0.0",
            "126.255.255.255",
            "128.0.0.0",
            "169.253.255.255",
            "169.255.0.0",
            "172.15.255.255",
            "172.32.0.0",
            "192.0.1.0",
            "192.167.255.255",
            "192.169.0.0",
            "198.17.255.255",
            "198.20.0.0",
            "223.255.255.255",
            "2606:4700:4700::1111",
            "2001:4860:4860::8888",
            "2001:200::1",
            "::ffff:8.8.8.8",
            "64:ff9b::8.8.8.8",
            "2002:808:808::1",
        ];
        for address in public {
            assert_eq!(verdict(&guard, address), Ok(()), "{address}");
        }
        let special = [
            ("0.0.0.0", "unspecified"),
            ("0.1.2.3", "unspecified"),
            ("10.0.0.0", "private"),
            ("10.255.255.255", "private"),
            ("172.16.0.0", "private"),
            ("172.31.255.255", "private"),
            ("192.168.0.1", "private"),
            ("100.64.0.0", "shared by a carrier's customers"),
            ("100.127.255.255", "shared by a carrier's customers"),
            ("127.0.0.1", "loopback"),
            ("127.255.255.255", "loopback"),
            ("169.254.169.254", "link-local"),
            ("192.0.0.1", "reserved"),
            ("192.0.2.1", "for documentation"),
            ("198.51.100.1", "for documentation"),
            ("203.0.113.1", "for documentation"),
            ("198.18.0.0", "for benchmarks"),
            ("198.19.255.255", "for benchmarks"),
            ("224.0.0.1", "multicast"),
            ("239.255.255.255", "multicast"),
            ("240.0.0.1", "reserved"),
            ("255.255.255.255", "reserved"),
            ("::", "unspecified"),
            ("::1", "loopback"),
            ("::ffff:127.0.0.1", "loopback"),
            ("::ffff:a9fe:a9fe", "link-local"),
            ("::10.0.0.1", "private"),
            ("::ffff:0:10.0.0.1", "private"),
            ("64:ff9b::192.168.0.1", "private"),
            ("64:ff9b::169.254.169.254", "link-local"),
            ("64:ff9b:1::1", "reserved"),
            ("2002:7f00:1::1", "loopback"),
            ("2002:a00:1::", "private"),
            ("fc00::1", "private"),
            ("fdff:ffff::1", "private"),
            ("fe80::1", "link-local"),
            ("febf::1", "link-local"),
            ("fec0::1", "site-local"),
            ("ff02::1", "multicast"),
            ("2001:db8::1", "for documentation"),
            ("3fff:fff::1", "for documentation"),
            ("2001::1", "reserved"),
            ("2001:2::1", "reserved"),
            ("100::1", "reserved"),
            ("5f00::1", "reserved"),
            ("4000::1", "reserved"),
        ];
        for (address, what) in special {
            assert_eq!(verdict(&guard, address), Err(what), "{address}");
        }
    }

    #[test]
    fn what_is_allowed_is_allowed_in_every_form_and_nothing_else_is() {
        let allow = ["10.1.0.0/16", "127.0.0.1", "fd00::/8"].map(|text| text.parse().expect("a network")).to_vec();
        let guard = Guard { allow_private: false, allow };
        for address in ["10.1.255.255", "127.0.0.1", "::ffff:127.0.0.1", "fd12::1"] {
            assert_eq!(verdict(&guard, address), Ok(()), "{address}");
        }
        for address in ["10.2.0.0", "127.0.0.2", "::1", "fc00::1", "169.254.169.254"] {
            assert!(verdict(&guard, address).is_err(), "{address}");
        }
        let all = Guard { allow_private: true, allow: Vec::new() };
        assert_eq!(verdict(&all, "127.0.0.1"), Ok(()));
        assert_eq!(verdict(&all, "fe80::1"), Ok(()));
        assert_eq!(verdict(&all, "0.0.0.0"), Err("unspecified"));
        assert_eq!(verdict(&all, "224.0.0.1"), Err("multicast"));
        let everything = Guard { allow_private: false, allow: vec!["0.0.0.0/0".parse().expect("a network")] };
        assert_eq!(verdict(&everything, "127.0.0.1"), Ok(()));
    }

    #[test]
    fn networks_are_written_as_people_do() {
        let network: Network = "10.1.0.0/16".parse().expect("a network");
        assert_eq!(network.to_string(), "10.1.0.0/16");
        for wrong in ["", "10.1.0.0/33", "fd00::/129", "10.1/16", "host", "10.1.0.0/", "10.1.0.0/-1"] {
            assert!(wrong.parse::<Network>().is_err(), "{wrong}");
        }
    }
}
