//! Access: the headers Host and Origin, and web pages of other sites.

use crate::world::{World, get};
use axum::{body::Body, http::Request};

async fn status(world: &World, headers: &[(&'static str, &str)]) -> u16 {
    let mut request = Request::builder().uri("/healthz");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    world.send(request.body(Body::empty()).unwrap()).await.status().as_u16()
}

#[tokio::test]
async fn a_web_page_cannot_reach_it() {
    let world = World::sqlite().await;
    for (accepted, headers) in [
        (true, &[("host", "127.0.0.1:7373")][..]),
        (true, &[("host", "localhost:7373")]),
        (true, &[("host", "LOCALHOST")]),
        (true, &[("host", "[::1]:7373")]),
        (false, &[("host", "evil.example:7373")]),
        (false, &[("host", "127.0.0.1.evil.example")]),
        (false, &[("host", "10.0.0.1:7373")]),
        (false, &[("host", "evil.example@127.0.0.1")]),
        (false, &[("host", "evil.example@127.0.0.1:7373"), ("origin", "http://evil.example@127.0.0.1:7373")]),
        (false, &[("host", "127.0.0.1@127.0.0.1")]),
        (false, &[("host", "[::1]evil.example")]),
        (false, &[("host", "[::1]:evil.example")]),
        (false, &[("host", "127.0.0.1:evil.example")]),
        (true, &[("host", "127.0.0.1:")]),
        (true, &[("host", "localhost:7373"), ("origin", "http://localhost:7373")]),
        (false, &[("host", "localhost:7373"), ("origin", "http://localhost:3000")]),
        (false, &[("host", "localhost:7373"), ("origin", "https://evil.example")]),
        (false, &[("host", "localhost:7373"), ("origin", "null")]),
        (false, &[("host", "localhost:7373"), ("origin", "chrome-extension://localhost:7373")]),
        (true, &[("host", "localhost:7373"), ("sec-fetch-site", "same-origin")]),
        (true, &[("host", "localhost:7373"), ("sec-fetch-site", "none")]),
        (false, &[("host", "localhost:7373"), ("sec-fetch-site", "cross-site")]),
        (false, &[("host", "localhost:7373"), ("sec-fetch-site", "same-site")]),
    ] {
        // A foreign name is another server's, a foreign page is forbidden.
        let refused = if headers.len() == 1 || headers[0].1.contains('@') { 421 } else { 403 };
        assert_eq!(status(&world, headers).await, if accepted { 200 } else { refused }, "{headers:?}");
    }
    assert_eq!(status(&world, &[]).await, 400, "there is no Host");
    let mut request = get("/healthz");
    request.headers_mut().insert("host", "evil.example".parse().unwrap());
    let host = world.exchange(request).await;
    let mut request = get("/v1/task/list");
    request.headers_mut().insert("origin", "https://evil.example".parse().unwrap());
    insta::assert_snapshot!(format!("{host}\n\n{}", world.exchange(request).await));
}

/// A proxy may read another value than this server does.
#[tokio::test]
async fn a_header_that_decides_access_must_not_be_repeated() {
    let world = World::sqlite().await;
    let own = ("host", "localhost:7373");
    for headers in [
        &[own, ("host", "evil.example")][..],
        &[own, own],
        &[own, ("origin", "http://localhost:7373"), ("origin", "https://evil.example")],
        &[own, ("sec-fetch-site", "none"), ("sec-fetch-site", "cross-site")],
        &[own, ("authorization", "Bearer a"), ("authorization", "Bearer b")],
        &[own, ("fence-agent", "a"), ("fence-agent", "b")],
    ] {
        assert_eq!(status(&world, headers).await, 400, "{headers:?}");
    }
    let line = |uri: &str| Request::builder().uri(uri).header("host", own.1).body(Body::empty()).unwrap();
    assert_eq!(world.send(line("http://localhost:7373/healthz")).await.status(), 200);
    assert_eq!(world.send(line("http://evil.example/healthz")).await.status(), 400);
    // The request line alone may name the server.
    for (accepted, uri) in [
        (true, "http://localhost:7373/healthz"),
        (false, "http://evil.example@localhost:7373/healthz"),
        (false, "http://[::1]evil.example/healthz"),
    ] {
        let request = Request::builder().uri(uri).body(Body::empty()).unwrap();
        assert_eq!(world.send(request).await.status(), if accepted { 200 } else { 421 }, "{uri}");
    }
}

#[tokio::test]
async fn a_server_may_have_names_and_every_address_of_its_machine() {
    let world = World::sqlite().await;
    let named = world.with(|settings| settings.names = vec!["Fleet.example".into()]);
    assert_eq!(status(&named, &[("host", "fleet.example")]).await, 200);
    assert_eq!(status(&named, &[("host", "other.example")]).await, 421);
    let everywhere = world.with(|settings| settings.listen = "0.0.0.0:7373".parse().unwrap());
    assert_eq!(
        status(&everywhere, &[("host", "10.0.0.1:7373")]).await,
        200,
        "a web page cannot choose the address"
    );
    for host in ["evil.example", "evil.example@10.0.0.1", "[::1]evil.example"] {
        assert_eq!(status(&everywhere, &[("host", host)]).await, 421, "{host}");
    }
}
