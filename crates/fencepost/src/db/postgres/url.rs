//! The address of a PostgreSQL fleet:
//! `postgres://user@host/db?schema=fleet&sslmode=verify-full&sslrootcert=root.crt`

use crate::{
    address::unescaped,
    error::{Code, Error, Result},
    limits::check,
};
use std::path::PathBuf;

/// The default schema. Our tables have common names such as `task` and `event`, so they get a schema of their own.
const DEFAULT_SCHEMA: &str = "fencepost";

/// The `sslrootcert` that means the authorities that the system trusts.
const SYSTEM: &str = "system";

#[derive(Debug, Clone)]
pub(crate) struct Target {
    pub config: tokio_postgres::Config,
    pub schema: String,
    pub ssl: SslMode,
    /// The file of the trusted authorities; `None`: those that the system trusts.
    pub root_cert: Option<PathBuf>,
}

/// The modes of libpq: `require` encrypts but trusts any certificate unless an authority is named; the `verify` modes
/// check it. There are three differences to libpq. An authority that cannot be read is an error in every mode that
/// encrypts. `prefer` does not go on unencrypted if the certificate is refused. Without `sslrootcert` the `verify`
/// modes use the system's authorities and not a file in the home directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SslMode {
    Disable,
    Prefer,
    Require,
    VerifyCa,
    VerifyFull,
}

impl Target {
    pub fn parse(url: &str) -> Result<Self> {
        let (base, query) = url.split_once('?').unwrap_or((url, ""));
        let mut schema = DEFAULT_SCHEMA.to_owned();
        let (mut ssl, mut root_cert) = (None, None);
        let mut rest = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            match pair.split_once('=') {
                Some(("schema", name)) => schema = name.into(),
                Some(("sslmode", mode)) => ssl = Some(SslMode::parse(mode)?),
                Some(("sslrootcert", path)) => {
                    root_cert = Some(unescaped(path)).filter(|path| !path.is_empty())
                }
                _ => rest.push(pair),
            }
        }
        check::plain_name("schema", &schema)?;
        let (ssl, root_cert) = match (ssl, root_cert.as_deref()) {
            (None | Some(SslMode::VerifyFull), Some(SYSTEM)) => (SslMode::VerifyFull, None),
            // The system trusts many authorities, and anybody can get a certificate for a name of their own from one.
            (Some(_), Some(SYSTEM)) => {
                return Err(Error::invalid(
                    "sslmode",
                    "is too weak for sslrootcert=system; it must be verify-full",
                ));
            }
            (ssl, root_cert) => (ssl.unwrap_or(SslMode::Prefer), root_cert.map(PathBuf::from)),
        };
        let plain = if rest.is_empty() { base.to_owned() } else { format!("{base}?{}", rest.join("&")) };
        let mut config: tokio_postgres::Config = plain.parse().map_err(|e: tokio_postgres::Error| {
            Error::new(Code::Invalid, format!("the PostgreSQL address cannot be read: {}", detail(&e)))
                .hint("it looks like postgres://user:password@host:5432/database?schema=fencepost")
        })?;
        config.ssl_mode(ssl.wire()).application_name("fencepost");
        if config.get_connect_timeout().is_none() {
            config.connect_timeout(std::time::Duration::from_secs(10));
        }
        // `public` comes second, so that a transaction also finds an embedder's own tables.
        let path = format!("-c search_path=\"{schema}\",public");
        let options = config.get_options().map_or(path.clone(), |given| format!("{given} {path}"));
        config.options(&options);
        Ok(Self { config, schema, ssl, root_cert })
    }
}

fn detail(e: &tokio_postgres::Error) -> String {
    std::error::Error::source(e).map_or_else(|| e.to_string(), ToString::to_string)
}

impl SslMode {
    fn parse(text: &str) -> Result<Self> {
        Ok(match text {
            "disable" => SslMode::Disable,
            "prefer" => SslMode::Prefer,
            "require" => SslMode::Require,
            "verify-ca" => SslMode::VerifyCa,
            "verify-full" => SslMode::VerifyFull,
            other => {
                let message =
                    format!("is `{other}`; it is one of disable, prefer, require, verify-ca, verify-full");
                return Err(Error::invalid("sslmode", message));
            }
        })
    }
    fn wire(self) -> tokio_postgres::config::SslMode {
        match self {
            SslMode::Disable => tokio_postgres::config::SslMode::Disable,
            SslMode::Prefer => tokio_postgres::config::SslMode::Prefer,
            SslMode::Require | SslMode::VerifyCa | SslMode::VerifyFull => {
                tokio_postgres::config::SslMode::Require
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_parameters_are_taken_out_and_the_rest_is_passed_on() {
        let url = "postgres://me@db.example:5433/work?schema=fleet&connect_timeout=3&sslmode=verify-ca&sslrootcert=%2Fetc%2Fca.crt";
        let target = Target::parse(url).unwrap();
        assert_eq!(target.schema, "fleet");
        assert_eq!(target.ssl, SslMode::VerifyCa);
        assert_eq!(target.root_cert, Some("/etc/ca.crt".into()));
        assert_eq!(target.config.get_connect_timeout(), Some(&std::time::Duration::from_secs(3)));
        assert_eq!(target.config.get_ports(), [5433]);
    }

    #[test]
    fn an_error_names_the_wrong_part() {
        for (url, says) in [
            ("postgres://h/d?sslmode=maybe", "sslmode"),
            ("postgres://h/d?sslmode=verify-ca&sslrootcert=system", "verify-full"),
            ("postgres://h/d?schema=a%20b", "schema"),
            ("postgres://h/d?nonsense=1", "nonsense"),
            ("postgres://h:port/d", "port"),
        ] {
            let error = Target::parse(url).expect_err(url);
            assert_eq!(error.code(), Code::Invalid);
            assert!(error.message().contains(says), "{url}: {error}");
        }
    }
}
