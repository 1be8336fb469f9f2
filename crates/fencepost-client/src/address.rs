//! The address of a server.

use fencepost::{Code, Error, Result};
use hyper::Uri;

/// The ops are under this prefix: `https://host:port/prefix`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    base: String,
}

impl Address {
    /// One server, or several servers of the same fleet separated by commas.
    pub fn parse_all(urls: &str) -> Result<Vec<Self>> {
        urls.split(',').map(|url| Self::parse(url.trim())).collect()
    }

    fn parse(url: &str) -> Result<Self> {
        let wrong = |why: &str| {
            Error::new(Code::Invalid, format!("the server's address {why}"))
                .hint("for example https://fence.example.com or http://127.0.0.1:7373")
        };
        let uri: Uri = url.parse().map_err(|e| wrong(&format!("is malformed: {e}")))?;
        if !matches!(uri.scheme_str(), Some("http" | "https")) {
            return Err(wrong("must begin with http:// or https://"));
        }
        let authority = uri.authority().ok_or_else(|| wrong("has no host"))?;
        if authority.as_str().contains('@') {
            return Err(wrong("must not have a user name or a password")
                .hint("put a key into FENCE_KEY; fence key add makes one"));
        }
        if uri.query().is_some() {
            return Err(wrong("must not have a `?`"));
        }
        Ok(Self { base: url.trim_end_matches('/').to_owned() })
    }

    pub fn is_https(&self) -> bool {
        self.base.starts_with("https://")
    }

    /// Is it this machine? Then nobody else can read the requests.
    pub fn is_loopback(&self) -> bool {
        let uri: Option<Uri> = self.base.parse().ok();
        let host = uri.as_ref().and_then(Uri::host).unwrap_or_default();
        let host = host.trim_start_matches('[').trim_end_matches(']').trim_end_matches('.');
        let name = host.to_ascii_lowercase();
        name == "localhost"
            || name.ends_with(".localhost")
            || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.to_canonical().is_loopback())
    }

    pub fn of_op(&self, op: &str) -> Result<Uri> {
        format!("{self}/v1/{op}").parse().map_err(Error::internal)
    }
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.base)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_this_machine_is_loopback() {
        let is_loopback = |url| Address::parse(url).expect("an address").is_loopback();
        for url in [
            "http://localhost:7373",
            "http://LOCALHOST/fence",
            "http://a.localhost",
            "http://127.0.0.1",
            "http://127.9.9.9:1",
            "http://[::1]:7373",
            "http://[::ffff:127.0.0.1]",
        ] {
            assert!(is_loopback(url), "{url}");
        }
        for url in [
            "http://10.0.0.7",
            "http://fence.example.com",
            "http://localhost.example.com",
            "http://[fe80::1]",
        ] {
            assert!(!is_loopback(url), "{url}");
        }
    }

    #[test]
    fn an_address_may_have_a_path_and_no_secrets() {
        let of = |url| Address::parse(url).map(|at| at.of_op("task/claim").expect("an address").to_string());
        assert_eq!(of("http://localhost:7373").expect("it is valid"), "http://localhost:7373/v1/task/claim");
        assert_eq!(of("https://host/fence/").expect("it is valid"), "https://host/fence/v1/task/claim");
        for url in
            ["http://kim:secret@host", "http://key@host", "http://", "http://ho st", "http://host/?a=1"]
        {
            let error = of(url).expect_err(url);
            assert_eq!(error.code(), Code::Invalid, "{url}");
            assert!(!error.to_json().to_string().contains("secret"), "{error:?}");
        }
    }
}
