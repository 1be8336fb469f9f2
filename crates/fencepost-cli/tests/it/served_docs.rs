//! The lines that `/docs` shows, run as they stand there.

use crate::{on_both, serve::Served};
use fencepost::{Code, op};
use serde_json::Value;
use std::io::{Read, Write};

/// What the page has in its boxes, in order.
fn lines(server: &Served) -> Vec<String> {
    let (mut stream, mut page) = (server.connect(), String::new());
    write!(stream, "GET /docs HTTP/1.1\r\nHost: {}\r\nConnection: close\r\n\r\n", server.address)
        .expect("sent");
    stream.read_to_string(&mut page).expect("the page");
    let boxes = page.split("<pre>").skip(1).map(|part| part.split("</pre>").next().expect("its end"));
    boxes
        .map(|text| {
            text.replace("&quot;", "\"").replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
        })
        .collect()
}

on_both! {
    without a server:

    fn every_line_of_the_page_works_as_printed(sealed: Sealed) {
        sealed.ok(&["init"]);
        let server = Served::start(&sealed, &[]);
        let lines = lines(&server);
        let run = |line: &String| -> Value {
            assert!(line.starts_with("curl "), "{line}");
            let said = sealed.sh(&line.replace("127.0.0.1:7373", &server.address));
            assert_eq!(said.code, 0, "{line}: {said:?}");
            serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{line}: {e}: {said:?}"))
        };
        let (life, ops) = lines.split_at(lines.len() - op::registry().len());
        let (last, life) = life.split_last().expect("a life");
        let mut story: Vec<_> = life.iter().map(run).collect();
        sealed.readable();
        story.push(run(last));
        let parts = ["/error/code", "/ok", "/claim/token", "/task/status", "/events/0/kind"];
        let short = |reply: &Value| parts.iter().find_map(|part| reply.pointer(part)).cloned();
        let told: Vec<_> = story.iter().filter_map(short).collect();
        let token = "task/demo-1@1";
        let wanted = serde_json::json!([
            "unassigned", token, "already_claimed", token, true, "completed", "completed", "task.added"
        ]);
        assert_eq!(Value::from(told), wanted, "{story:#?}");
        // A key closes the server to who has none.
        let (keys, ops): (Vec<_>, Vec<_>) = ops.iter().partition(|line| line.contains("/v1/key/add"));
        for line in ops.into_iter().chain(keys) {
            let reply = run(line);
            assert_ne!(reply.pointer("/error/code"), Some(&Code::Invalid.as_str().into()), "{line}: {reply}");
            assert_ne!(reply.pointer("/error/code"), Some(&Code::Internal.as_str().into()), "{line}: {reply}");
        }
    }
}
