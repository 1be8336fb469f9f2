//! TLS to PostgreSQL, with libpq's meaning of `sslmode`.

use super::url::{SslMode, Target};
use crate::error::{Code, Error, Result};
use rustls::{
    ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
    client::{
        WebPkiServerVerifier,
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    },
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
};
use std::{path::Path, sync::Arc};
use tokio_postgres_rustls::MakeRustlsConnect;

pub(super) fn connector(target: &Target) -> Result<MakeRustlsConnect> {
    let provider = Arc::new(ring::default_provider());
    let builder = ClientConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(Error::internal)?;
    let roots = || roots(target.root_cert.as_deref());
    // If an authority is named, the modes that otherwise trust any certificate check it as well, as in libpq.
    let checks = match target.ssl {
        SslMode::Disable => Checks::Nothing,
        SslMode::Prefer | SslMode::Require if target.root_cert.is_none() => Checks::Nothing,
        SslMode::Prefer | SslMode::Require | SslMode::VerifyCa => Checks::Authority,
        SslMode::VerifyFull => Checks::AuthorityAndName,
    };
    let any_host_name = |authority| Arc::new(AnyHostName { provider: provider.clone(), authority });
    let config = match checks {
        Checks::Nothing => builder.dangerous().with_custom_certificate_verifier(any_host_name(None)),
        Checks::Authority => {
            let authority = WebPkiServerVerifier::builder_with_provider(Arc::new(roots()?), provider.clone());
            let authority = authority.build().map_err(Error::internal)?;
            builder.dangerous().with_custom_certificate_verifier(any_host_name(Some(authority)))
        }
        Checks::AuthorityAndName => builder.with_root_certificates(roots()?),
    };
    Ok(MakeRustlsConnect::new(config.with_no_client_auth()))
}

/// The checks of the server's certificate.
enum Checks {
    Nothing,
    Authority,
    AuthorityAndName,
}

/// The certificates of `sslrootcert`, or the system's.
fn roots(file: Option<&Path>) -> Result<RootCertStore> {
    let mut store = RootCertStore::empty();
    let Some(path) = file else {
        let found = rustls_native_certs::load_native_certs();
        store.add_parsable_certificates(found.certs);
        if store.is_empty() {
            return Err(Error::unavailable("this system has no trusted certificates")
                .hint("give the authority's certificate with sslrootcert=FILE"));
        }
        return Ok(store);
    };
    let unreadable = |e: &dyn std::fmt::Display| {
        Error::new(Code::Invalid, format!("sslrootcert `{}` cannot be read: {e}", path.display()))
    };
    for certificate in CertificateDer::pem_file_iter(path).map_err(|e| unreadable(&e))? {
        store.add(certificate.map_err(|e| unreadable(&e))?).map_err(|e| unreadable(&e))?;
    }
    if store.is_empty() {
        return Err(unreadable(&"there is no certificate in it"));
    }
    Ok(store)
}

/// Does not check the host's name. With an authority, the certificate must be signed by it; without one, any certificate is
/// accepted.
#[derive(Debug)]
struct AnyHostName {
    provider: Arc<CryptoProvider>,
    authority: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for AnyHostName {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        use rustls::CertificateError as E;
        let Some(authority) = &self.authority else { return Ok(ServerCertVerified::assertion()) };
        match authority.verify_server_cert(end_entity, intermediates, server_name, ocsp, now) {
            Err(rustls::Error::InvalidCertificate(E::NotValidForName | E::NotValidForNameContext { .. })) => {
                Ok(ServerCertVerified::assertion())
            }
            other => other,
        }
    }
    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, cert, dss, algorithms)
    }
    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, cert, dss, algorithms)
    }
    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
