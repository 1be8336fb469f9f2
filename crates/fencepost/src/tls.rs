//! Errors of a TLS connection, in plain words.

use rustls::{CertificateError, Error as Tls};
use std::{error::Error, io};

/// Why a server is not trusted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Distrust {
    /// No trusted authority signed its certificate.
    Signer,
    /// Its certificate is the authority's, not a server's.
    IsAuthority,
    /// Its certificate is for another name.
    Name,
    /// Its certificate has expired, or is not valid yet.
    Time,
    /// It does not speak TLS.
    NotTls,
    Other,
}

/// Finds the TLS error in an error's chain of sources, and describes it in plain words.
pub fn distrust(error: &(dyn Error + 'static)) -> Option<(Distrust, String)> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(found) = error.downcast_ref::<Tls>() {
            return Some(describe(found));
        }
        // An I/O error does not name the error that it wraps as its source.
        let wrapped = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
        next = wrapped.map(|wrapped| wrapped as &(dyn Error + 'static)).or_else(|| error.source());
    }
    None
}

fn describe(error: &Tls) -> (Distrust, String) {
    match error {
        Tls::InvalidCertificate(error) => describe_certificate(error),
        Tls::InvalidMessage(_) => (Distrust::NotTls, "it does not speak TLS".into()),
        other => (Distrust::Other, other.to_string()),
    }
}

fn describe_certificate(error: &CertificateError) -> (Distrust, String) {
    use CertificateError as E;
    match error {
        E::UnknownIssuer => (Distrust::Signer, "no trusted authority signed its certificate".into()),
        E::NotValidForName => (Distrust::Name, "its certificate is for another name".into()),
        E::NotValidForNameContext { expected, presented } => {
            // rustls writes them as `DnsName("localhost")`.
            let plain = |name: &String| {
                let name = name.split_once('(').map_or(name.as_str(), |(_, name)| name.trim_end_matches(')'));
                name.trim_matches('"').to_owned()
            };
            let names = presented.iter().map(plain);
            let names = match names.collect::<Vec<_>>().join(", ") {
                names if names.is_empty() => "no name".to_owned(),
                names => names,
            };
            (Distrust::Name, format!("its certificate is for {names}, not for {}", expected.to_str()))
        }
        E::Expired | E::ExpiredContext { .. } => (Distrust::Time, "its certificate has expired".into()),
        E::NotValidYet | E::NotValidYetContext { .. } => {
            (Distrust::Time, "its certificate is not valid yet".into())
        }
        // rustls has no variant for this one, so its text is compared.
        E::Other(other) if format!("{other:?}").contains("CaUsedAsEndEntity") => {
            (Distrust::IsAuthority, "its certificate is that of an authority, not of a server".into())
        }
        other => (Distrust::Other, format!("its certificate is not accepted: {other}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustls::pki_types::ServerName;

    #[test]
    fn the_tls_error_is_found_below_other_errors() {
        let context = CertificateError::NotValidForNameContext {
            expected: ServerName::try_from("fence.example.com").unwrap(),
            presented: vec!["DnsName(\"localhost\")".into(), "IpAddress(127.0.0.1)".into()],
        };
        for (error, distrust_is, says) in [
            (
                Tls::InvalidCertificate(CertificateError::UnknownIssuer),
                Distrust::Signer,
                "no trusted authority",
            ),
            (
                Tls::InvalidCertificate(context),
                Distrust::Name,
                "is for localhost, 127.0.0.1, not for fence.example.com",
            ),
            (Tls::InvalidCertificate(CertificateError::Expired), Distrust::Time, "has expired"),
            (Tls::General("odd".into()), Distrust::Other, "odd"),
        ] {
            let wrapped = io::Error::other(io::Error::other(error.clone()));
            for error in [&error as &(dyn Error + 'static), &wrapped] {
                let (is, said) = distrust(error).expect("it is found");
                assert_eq!(is, distrust_is);
                assert!(said.contains(says), "{said}");
            }
        }
        assert_eq!(distrust(&io::Error::other("plain")), None);
    }
}
