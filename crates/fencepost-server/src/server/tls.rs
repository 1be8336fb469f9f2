//! TLS, with a certificate and a key from files.

use crate::settings::TlsFiles;
use fencepost::{Code, Error, Result, sync};
use std::{
    fmt::Display,
    path::Path,
    sync::{Arc, RwLock},
};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        ServerConfig,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
    },
};

/// The certificate that clients see. It can be reloaded when the files have changed.
#[derive(Debug)]
pub struct Tls {
    files: TlsFiles,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    pub fn read(files: TlsFiles) -> Result<Self> {
        Ok(Self { config: RwLock::new(config(&files)?), files })
    }

    /// Reads the files again. After an error the old certificate stays in use.
    pub fn reload(&self) -> Result<()> {
        let config = config(&self.files)?;
        *sync::write(&self.config) = config;
        Ok(())
    }

    pub fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(sync::read(&self.config).clone())
    }
}

fn config(files: &TlsFiles) -> Result<Arc<ServerConfig>> {
    let certs = CertificateDer::pem_file_iter(&files.cert)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|e| unusable("certificate", &files.cert, e))?;
    let key = PrivateKeyDer::from_pem_file(&files.key).map_err(|e| unusable("key", &files.key, e))?;
    let builder = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(Error::internal)?;
    let mut config = builder
        .with_no_client_auth()
        .with_single_cert(certs, key)
        .map_err(|e| unusable("certificate", &files.cert, e))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

fn unusable(what: &str, path: &Path, e: impl Display) -> Error {
    Error::new(Code::Invalid, format!("the TLS {what} `{}` cannot be used: {e}", path.display()))
        .hint("the certificate and its key are PEM files that belong together")
}
