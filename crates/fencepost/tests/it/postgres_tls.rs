//! `sslmode`, with the meaning that libpq gives it.

use crate::postgres_proxy::Proxy;
use fencepost::{Code, Fleet, Result, params};
use fencepost_testing::{
    postgres::{address, fresh_schema},
    world::refused,
};

struct Way {
    base: String,
    root_cert: String,
    schema: String,
}

impl Way {
    fn new() -> Self {
        let get = |name| std::env::var(name).expect("run the tests with `make test`");
        Self { base: address(), root_cert: get("FENCE_TEST_POSTGRES_ROOT_CERT"), schema: fresh_schema() }
    }

    async fn open(&self, query: &str) -> Result<Fleet> {
        Fleet::open(&format!("{}?schema={}&{query}", self.base, self.schema)).await
    }

    fn verified(&self, mode: &str) -> String {
        format!("sslmode={mode}&sslrootcert={}", self.root_cert)
    }
}

/// Does the server see this connection as encrypted?
async fn is_encrypted(fleet: &Fleet) -> bool {
    let ask = fleet.transaction(|tx| {
        Box::pin(async move {
            let sql = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            tx.query(sql, params![]).await?[0].get::<bool>("ssl")
        })
    });
    ask.await.unwrap()
}

/// The outcome of opening an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Is {
    Plain,
    Encrypted,
    /// The server's certificate is not trusted.
    Distrusted,
    /// The address itself is refused.
    Wrong,
}

async fn outcome(way: &Way, query: &str) -> Is {
    match way.open(query).await {
        Ok(fleet) if is_encrypted(&fleet).await => Is::Encrypted,
        Ok(_) => Is::Plain,
        Err(error) if error.code() == Code::Invalid => {
            assert!(["sslrootcert", "sslmode"].iter().any(|word| error.message().contains(word)), "{error}");
            Is::Wrong
        }
        Err(error) => {
            assert_eq!(error.code(), Code::Unavailable, "{query}: {error:?}");
            assert!(error.message().starts_with("PostgreSQL cannot be trusted: "), "{query}: {error:?}");
            Is::Distrusted
        }
    }
}

/// libpq's table, and `sslrootcert=system`: no authority of the system signed the test server's certificate.
#[tokio::test]
async fn every_mode_with_every_authority() {
    use Is::{Distrusted, Encrypted, Plain, Wrong};
    let way = Way::new();
    let dir = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str| {
        let path = dir.path().join(name);
        std::fs::write(&path, text).unwrap();
        path.display().to_string()
    };
    let (other, empty) = (file("other.crt", OTHER), file("empty.crt", ""));
    let missing = dir.path().join("missing.crt").display().to_string();
    let authorities = ["", &way.root_cert, &other, &missing, &empty, "system"];
    for (mode, outcomes) in [
        //              none        the right one  another     missing  empty  the system's
        ("", [Encrypted, Encrypted, Distrusted, Wrong, Wrong, Distrusted]),
        ("disable", [Plain, Plain, Plain, Plain, Plain, Wrong]),
        ("prefer", [Encrypted, Encrypted, Distrusted, Wrong, Wrong, Wrong]),
        ("require", [Encrypted, Encrypted, Distrusted, Wrong, Wrong, Wrong]),
        ("verify-ca", [Distrusted, Encrypted, Distrusted, Wrong, Wrong, Wrong]),
        ("verify-full", [Distrusted, Encrypted, Distrusted, Wrong, Wrong, Distrusted]),
    ] {
        for (authority, expected) in authorities.into_iter().zip(outcomes) {
            let mode = if mode.is_empty() { String::new() } else { format!("sslmode={mode}&") };
            let query = format!("{mode}sslrootcert={authority}");
            assert_eq!(outcome(&way, &query).await, expected, "{query}");
        }
    }
}

#[tokio::test]
async fn only_verify_full_minds_the_hosts_name() {
    let mut way = Way::new();
    let server = way.base.split_once('@').unwrap().1.split('/').next().unwrap().to_owned();
    // Another address of this machine, which the certificate does not name.
    let proxy = Proxy::at("127.0.0.2:0", &server).await;
    way.base = way.base.replace(&server, &format!("127.0.0.2:{}", proxy.port));
    for mode in ["prefer", "require", "verify-ca"] {
        assert_eq!(
            outcome(&way, &way.verified(mode)).await,
            Is::Encrypted,
            "{mode}: the name is not looked at"
        );
    }
    let error = refused(way.open(&way.verified("verify-full")).await);
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    assert!(error.message().contains("certificate"), "{error:?}");
}

/// An authority that did not sign the server's certificate.
const OTHER: &str = "-----BEGIN CERTIFICATE-----
MIIBjjCCATWgAwIBAgIUYGzRhhvwijpOwi/jKNwAm1NQUDkwCgYIKoZIzj0EAwIw
HDEaMBgGA1UEAwwRYW5vdGhlciBhdXRob3JpdHkwIBcNMjYxMTE2MTk1OTUwWhgP
MjEyNjEwMjMxOTU5NTBaMBwxGjAYBgNVBAMMEWFub3RoZXIgYXV0aG9yaXR5MFkw
EwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEeFJNWWqmFVbvaT61PcTStd8I3Ro5/tX+
/f/z7MPdPNC5tCIgVCglIXAvKr+knOroBs0SkE+nRii4BsXQSYZctKNTMFEwHQYD
VR0OBBYEFN9K0OoWIb65V5kPyn/MdHBGJpkkMB8GA1UdIwQYMBaAFN9K0OoWIb65
V5kPyn/MdHBGJpkkMA8GA1UdEwEB/wQFMAMBAf8wCgYIKoZIzj0EAwIDRwAwRAIg
cd0TrWXxeQoVdyGnJDJSuWeIKRVLgeuC9rYT2ydKEnACIBG7SzBTORRX/Rt2dvLF
UWTak9LqYFxBVIon/RTRvXy5
-----END CERTIFICATE-----";
