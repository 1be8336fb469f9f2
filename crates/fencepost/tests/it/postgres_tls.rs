//! `sslmode`, as libpq has it.

use crate::{
    proxy::Proxy,
    world::{fresh_schema, refused},
};
use fencepost::{Code, Fleet, Result, params};

struct Way {
    base: String,
    root_cert: String,
    schema: String,
}

impl Way {
    fn new() -> Self {
        let get = |name| std::env::var(name).expect("run the tests with `make test`");
        Self {
            base: get("FENCE_TEST_POSTGRES"),
            root_cert: get("FENCE_TEST_POSTGRES_ROOT_CERT"),
            schema: fresh_schema(),
        }
    }

    async fn open(&self, query: &str) -> Result<Fleet> {
        Fleet::open(&format!("{}?schema={}&{query}", self.base, self.schema)).await
    }

    fn verified(&self, mode: &str) -> String {
        format!("sslmode={mode}&sslrootcert={}", self.root_cert)
    }
}

/// Whether the server sees this connection as encrypted.
async fn is_encrypted(fleet: &Fleet) -> bool {
    let ask = fleet.transaction(|tx| {
        Box::pin(async move {
            let sql = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
            tx.query(sql, params![]).await?[0].get::<bool>("ssl")
        })
    });
    ask.await.unwrap()
}

#[tokio::test]
async fn every_mode_but_disable_encrypts() {
    let way = Way::new();
    for (query, encrypts) in [
        ("".to_owned(), true),
        ("sslmode=disable".into(), false),
        ("sslmode=prefer".into(), true),
        ("sslmode=require".into(), true),
        (way.verified("verify-ca"), true),
        (way.verified("verify-full"), true),
    ] {
        let fleet = way.open(&query).await.unwrap_or_else(|e| panic!("{query}: {e}"));
        assert_eq!(is_encrypted(&fleet).await, encrypts, "{query}");
    }
}

#[tokio::test]
async fn a_certificate_that_no_trusted_authority_signed_is_refused() {
    let way = Way::new();
    for mode in ["verify-ca", "verify-full"] {
        let error = refused(way.open(&format!("sslmode={mode}")).await);
        assert_eq!(error.code(), Code::Unavailable, "{error:?}");
        let said = format!("{} {}", error.message(), error.hint_text().unwrap_or_default());
        assert!(said.contains("certificate"), "{mode}: {said}");
    }
    let error = refused(way.open("sslmode=verify-full&sslrootcert=no-such.crt").await);
    assert_eq!(error.code(), Code::Invalid);
    assert!(error.message().contains("no-such.crt"), "{error}");
}

#[tokio::test]
async fn only_verify_full_minds_the_hosts_name() {
    let mut way = Way::new();
    let server = way.base.split_once('@').unwrap().1.split('/').next().unwrap().to_owned();
    // Another address of this machine, which the certificate does not name.
    let proxy = Proxy::at("127.0.0.2:0", &server).await;
    way.base = way.base.replace(&server, &format!("127.0.0.2:{}", proxy.port));
    let fleet = way.open(&way.verified("verify-ca")).await.expect("the name is not looked at");
    assert!(is_encrypted(&fleet).await);
    let error = refused(way.open(&way.verified("verify-full")).await);
    assert_eq!(error.code(), Code::Unavailable, "{error:?}");
    assert!(error.message().contains("certificate"), "{error:?}");
}
