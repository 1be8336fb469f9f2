use super::*;
use proptest::prelude::*;
use serde_json::json;

fn object(value: Value) -> Map<String, Value> {
    value.as_object().expect("an object").clone()
}

fn hook(command: &str) -> Value {
    json!({"matcher": "Bash", "hooks": [{"type": "command", "command": command}]})
}

/// Texts that begin with the words of a hook of ours, and nobody's texts.
#[derive(Debug)]
struct Words(&'static [&'static str]);

impl Ours for Words {
    fn includes(&self, text: &str) -> bool {
        self.0.iter().any(|words| text.starts_with(words))
    }
}

fn ours() -> Json {
    Json {
        entries: object(json!({
            "hooks": {"Stop": [hook("fence hook stop")], "PreToolUse": [hook("fence hook pre"), hook("fence hook mcp")]},
            "permissions": {"allow": ["mcp__fence"]},
            "mcpServers": {"fence": {"command": "fence", "args": ["mcp"]}},
            "flag": true,
        })),
        ours: Rc::new(Words(&["fence hook "])),
        named: vec![vec!["mcpServers".into(), "fence".into()]],
    }
}

/// Only one hook, so that the text is short.
fn small() -> Json {
    Json { entries: object(json!({"hooks": {"Stop": ["fence hook stop"]}})), ..ours() }
}

#[test]
fn an_entry_is_laid_out_like_its_neighbours() {
    for (before, after) in [
        ("{}", r#"{"hooks": { "Stop": [ "fence hook stop" ] }}"#),
        (r#"{"a":1}"#, r#"{"a":1, "hooks": { "Stop": [ "fence hook stop" ] }}"#),
        (r#"{"hooks":{"Stop":["b"]}}"#, r#"{"hooks":{"Stop":["b", "fence hook stop"]}}"#),
        (r#"{"hooks": {"Stop": []}}"#, r#"{"hooks": {"Stop": ["fence hook stop"]}}"#),
        (
            "{\n  \"hooks\": {\n    \"Stop\": [ // theirs\n      \"b\", /* b */ // c\n    ],\n  },\n}\n",
            "{\n  \"hooks\": {\n    \"Stop\": [ // theirs\n      \"b\", /* b */ // c\n      \"fence hook stop\",\n    ],\n  },\n}\n",
        ),
        (
            "{\r\n\t\"a\": 1 // one\r\n}",
            "{\r\n\t\"a\": 1, // one\r\n\t\"hooks\": {\r\n\t\t\"Stop\": [\r\n\t\t\t\"fence hook stop\"\r\n\t\t]\r\n\t}\r\n}",
        ),
        (
            "\u{feff}{\"a\": 1 // one\n}",
            "\u{feff}{\"a\": 1, \"hooks\": { \"Stop\": [ \"fence hook stop\" ] } // one\n}",
        ),
        ("", "{\n  \"hooks\": {\n    \"Stop\": [\n      \"fence hook stop\"\n    ]\n  }\n}"),
    ] {
        assert_eq!(small().apply(Some(before)).as_deref(), Ok(after), "{before}");
        assert_eq!(small().apply(Some(after)).as_deref(), Ok(after), "twice: {before}");
        assert_eq!(small().remove(after), Ok(Some(before.to_owned())), "removed: {before}");
    }
    let made = small().apply(None).expect("made");
    assert!(made.ends_with("}\n"), "{made}");
    assert_eq!(small().remove(&made), Ok(None), "a file that we made goes away");
}

#[test]
fn entries_of_others_stay_wherever_they_are() {
    let text = |rest: &str| {
        let made = small().apply(Some("{\n  \"a\": 1\n}\n")).expect("made");
        made.replace("\"fence hook stop\"", rest)
    };
    let theirs = |list: &str| format!("{{\n  \"a\": 1,\n  \"hooks\": {{\n    \"Stop\": [{list}]\n  }}\n}}\n");
    for (with, left) in [
        ("\"fence hook stop\",\n      \"x\" // x", "\n      \"x\" // x\n    "),
        ("\"x\", // x\n      \"fence hook stop\"", "\n      \"x\" // x\n    "),
        ("\"x\", \"fence hook stop\" /* y */, \"z\"", "\n      \"x\", /* y */ \"z\"\n    "),
        // A comment keeps the list.
        ("\"fence hook stop\" // x", " // x\n    "),
        // A line comment must not swallow what follows.
        ("// x\n      \"fence hook stop\", \"z\"", "\n      // x\n       \"z\"\n    "),
    ] {
        assert_eq!(small().remove(&text(with)), Ok(Some(theirs(left))), "{with}");
    }
    // Their hook in one group with ours.
    let both = r#"{"hooks": {"Stop": [{"hooks": [{"command": "x"}, {"command": "fence hook old"}]}]}}"#;
    let left = r#"{"hooks": {"Stop": [{"hooks": [{"command": "x"}]}]}}"#;
    assert_eq!(small().remove(both), Ok(Some(left.into())));
    assert_eq!(small().texts(both), Ok(vec!["x".into(), "fence hook old".into()]));
}

#[test]
fn stale_entries_are_replaced_in_place() {
    for (stale, current) in [
        (
            r#"{"hooks":{"Stop":["a","fence hook old","b"]}}"#,
            r#"{"hooks":{"Stop":["a","fence hook stop","b"]}}"#,
        ),
        // Twice, and for an event that is not wanted any more.
        (
            r#"{"hooks":{"Stop":["fence hook 1", "a", "fence hook 2"]}}"#,
            r#"{"hooks":{"Stop":["fence hook stop", "a"]}}"#,
        ),
        (
            r#"{"hooks":{"Stop":["fence hook stop"],"Old":["a", "fence hook stop"]}}"#,
            r#"{"hooks":{"Stop":["fence hook stop"],"Old":["a"]}}"#,
        ),
        (
            r#"{ "hooks": { "Old": [ "fence hook stop" ] } }"#,
            "{\n  \"hooks\": {\n    \"Stop\": [\n      \"fence hook stop\"\n    ]\n  }\n}",
        ),
    ] {
        assert_eq!(small().apply(Some(stale)).as_deref(), Ok(current), "{stale}");
    }
    let server = r#"{"mcpServers":{"fence":{"command":"old"},"x":{}}}"#;
    let current = ours().apply(Some(server)).expect("applied");
    assert!(
        current.starts_with(r#"{"mcpServers":{"fence":{ "command": "fence", "args": [ "mcp" ] },"x":{}}, "#),
        "{current}"
    );
}

#[test]
fn elements_that_are_in_the_file_are_told() {
    let told = |text: Option<&str>| -> Vec<bool> {
        let ours = ours();
        ours.elements(text).expect("JSON").into_iter().map(|(_, is_there)| is_there).collect()
    };
    assert_eq!(told(None), [false; 5]);
    let made = ours().apply(None).expect("made");
    assert_eq!(told(Some(&made)), [true; 5]);
    let changed = made.replacen("\"Bash\"", "\"Other\"", 1);
    assert_eq!(told(Some(&changed)).iter().filter(|is_there| !**is_there).count(), 1, "{changed}");
}

#[test]
fn a_file_that_is_not_understood_is_refused() {
    for (text, problem) in [
        (r#"{"hooks": []}"#, "`hooks` is a list, and an object belongs there"),
        (r#"{"hooks": {"Stop": {}}}"#, "`hooks.Stop` is an object, and a list belongs there"),
        (r#"[1]"#, "the file is a list, and an object belongs there"),
        (r#"{"flag": false}"#, "`flag` is false, and true belongs there; it is left as it is"),
        ("{\"a\": 1,\n\"a\": 2}", "line 2: the key `a` is there twice"),
        ("{\"\\u0061\": 1, \"a\": 2}", "line 1: the key `a` is there twice"),
        ("{\n\"a\": }", "it is not JSON: line 2: a value is missing"),
        ("{\n\"a\": 1 \"b\": 2}", "it is not JSON: line 2: a comma or `}` is missing"),
        ("{,}", "it is not JSON: line 1: a key in double quotes is missing"),
        ("{} {}", "it is not JSON: line 1: there is more after the end of the JSON value"),
        ("{\"a\": nul}", "it is not JSON: line 1: `nul` is not a value"),
        ("{\"a\": \"x}", "it is not JSON: line 1: a text has no end"),
        ("{} /* x", "it is not JSON: line 1: a comment has no end"),
        ("// x", "it is not JSON: there are only comments in it"),
    ] {
        let order =
            Json { entries: object(json!({"flag": true, "hooks": {"Stop": ["fence hook stop"]}})), ..ours() };
        assert_eq!(order.apply(Some(text)), Err(problem.to_owned()), "{text}");
    }
    let deep = "[".repeat(100_000);
    assert!(ours().apply(Some(&deep)).is_err_and(|e| e.contains("nested too deeply")));
}

/// White space and comments, as people and programs leave them.
fn space() -> impl Strategy<Value = &'static str> {
    prop::sample::select(vec![
        "",
        "",
        "",
        " ",
        "\n",
        "\n  ",
        "\r\n\t",
        "  \n\n",
        "/* c */",
        " // c, \"}\n",
        "\n// [\r\n",
        "/*\n*/ ",
    ])
}

/// A value as text.
fn value() -> impl Strategy<Value = String> {
    let scalar =
        prop::sample::select(vec!["1", "-2.5e3", "true", "null", "\"\"", "\"a \\\" // b\"", "\"\\u00e9é\""]);
    scalar.prop_map(str::to_owned).prop_recursive(4, 24, 4, |inner| {
        prop_oneof![list(inner.clone()), members(prop::collection::vec(inner, 0..4).prop_map(named))]
    })
}

fn named(values: Vec<String>) -> Vec<(String, String)> {
    values.into_iter().enumerate().map(|(at, value)| (format!("k{at}"), value)).collect()
}

fn list(inner: impl Strategy<Value = String>) -> impl Strategy<Value = String> {
    (prop::collection::vec((space(), inner, space()), 0..4), any::<bool>(), space()).prop_map(
        |(items, comma, end)| {
            let items: Vec<_> =
                items.iter().map(|(before, item, after)| format!("{before}{item}{after}")).collect();
            let comma = if comma && !items.is_empty() { "," } else { "" };
            format!("[{}{comma}{end}]", items.join(","))
        },
    )
}

fn members(of: impl Strategy<Value = Vec<(String, String)>>) -> impl Strategy<Value = String> {
    (of, prop::collection::vec((space(), space(), space()), 8), any::<bool>(), space()).prop_map(
        |(members, spaces, comma, end)| {
            let members = members.iter().zip(&spaces);
            let members: Vec<_> =
                members.map(|((key, value), (a, b, c))| format!("{a}\"{key}\"{b}:{c}{value}")).collect();
            let comma = if comma && !members.is_empty() { "," } else { "" };
            format!("{{{}{comma}{end}}}", members.join(","))
        },
    )
}

/// A settings file of others, in which some of the keys that we need may be.
fn document() -> impl Strategy<Value = String> {
    let events =
        (prop::option::of(list(value())), prop::option::of(list(value()))).prop_map(|(stop, pre)| {
            let stop = stop.map(|value| ("Stop".to_owned(), value));
            pre.map(|value| ("PreToolUse".to_owned(), value)).into_iter().chain(stop).collect()
        });
    let allow = list(value()).prop_map(|value| vec![("allow".to_owned(), value)]);
    let servers = prop::collection::vec(value(), 0..3).prop_map(named);
    let keys = (
        prop::collection::vec(value(), 0..4).prop_map(named),
        prop::option::of(members(events)),
        prop::option::of(members(allow)),
        prop::option::of(members(servers)),
    );
    let root = keys.prop_map(|(mut others, hooks, permissions, servers)| {
        let ours = [("hooks", hooks), ("permissions", permissions), ("mcpServers", servers)];
        others.extend(ours.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))));
        others
    });
    let bom = prop::sample::select(vec!["", "", "\u{feff}"]);
    (bom, space(), members(root), space())
        .prop_map(|(bom, before, root, after)| format!("{bom}{before}{root}{after}"))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_removal_restores_every_byte(text in document()) {
        let with = ours().apply(Some(&text)).expect("applied");
        prop_assert_eq!(ours().apply(Some(&with)).expect("applied twice"), with.clone());
        let value = |text: &str| jsonc::parse(text).expect("JSON").expect("a value").value();
        let fence = value(&with)["mcpServers"]["fence"].clone();
        prop_assert_eq!(&fence, &ours().entries["mcpServers"]["fence"]);
        prop_assert_eq!(ours().remove(&with), Ok(Some(text)));
    }

    /// Others append an entry to every list and object after ours.
    #[test]
    fn later_entries_of_others_stay(text in document(), at in 0..4_usize) {
        let theirs = Json {
            entries: object([
                json!({"hooks": {"Stop": ["x"]}}),
                json!({"hooks": {"PreToolUse": [{"hooks": ["x"]}], "Other": ["x"]}}),
                json!({"other": {"x": 1}}),
                json!({"mcpServers": {"x": {"command": "x"}}, "permissions": {"allow": ["x"]}}),
            ][at].clone()),
            ours: Rc::new(Words(&[])),
            named: vec![],
        };
        let value = |text: &str| jsonc::parse(text).expect("JSON").expect("a value").value();
        let both = theirs.apply(Some(&ours().apply(Some(&text)).expect("ours"))).expect("theirs");
        let left = ours().remove(&both).expect("removed").expect("a file");
        let alone = theirs.apply(Some(&text)).expect("theirs alone");
        prop_assert_eq!(value(&left), value(&alone));
    }
}
