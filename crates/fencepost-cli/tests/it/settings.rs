//! Flags, then variables, then `fence.toml`; and keys.

use crate::{
    on_both,
    sealed::{Finished, Sealed, finished, without_times},
};

/// `fence` with these variables, without paths that differ.
fn with(sealed: &Sealed, variables: &[(&str, &str)], words: &[&str]) -> Finished {
    let mut command = sealed.command("fence");
    command.env("FENCE_RUN", "me").envs(variables.iter().copied()).args(words);
    let said = finished(command.output().expect("fence"));
    let here = std::fs::canonicalize(sealed.path()).expect("the directory").display().to_string();
    Finished { out: said.out.replace(&here, "HERE"), err: said.err.replace(&here, "HERE"), ..said }
}

fn write(sealed: &Sealed, name: &str, text: &str) {
    let path = sealed.path().join(name);
    std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
    std::fs::write(path, text).expect("written");
}

/// A `fence.toml` of the project, which the user trusts.
fn project(sealed: &Sealed, text: &str) {
    write(sealed, "fence.toml", text);
    sealed.ok(&["trust"]);
}

/// The settings in force, as `key value source`.
fn in_force(sealed: &Sealed, variables: &[(&str, &str)], words: &[&str]) -> Vec<String> {
    let said = with(sealed, variables, &[words, &["--json", "config", "show"]].concat());
    let all: Vec<serde_json::Value> =
        serde_json::from_str(&said.out).unwrap_or_else(|e| panic!("{e}: {said:?}"));
    let text = |setting: &serde_json::Value, field: &str| setting[field].as_str().unwrap_or("-").to_owned();
    let line =
        |setting| format!("{} {} {}", text(setting, "key"), text(setting, "value"), text(setting, "source"));
    all.iter().map(line).collect()
}

#[test]
fn each_value_has_its_source() {
    let sealed = Sealed::sqlite();
    let line = |all: Vec<String>, key: &str| {
        all.into_iter().find(|line| line.starts_with(&format!("{key} "))).unwrap_or_else(|| panic!("{key}"))
    };
    let at = |variables: &[(&str, &str)], words: &[&str], key| line(in_force(&sealed, variables, words), key);
    assert_eq!(at(&[], &[], "url"), "url - default");
    assert_eq!(at(&[], &[], "serve.listen"), "serve.listen 127.0.0.1:7373 default");

    let file =
        "url = \"http://file\"\nkey = \"secret\"\nagent = \"kim\"\n[serve]\nlisten = \"127.0.0.1:1\"\n";
    project(&sealed, file);
    assert_eq!(at(&[], &[], "url"), "url http://file HERE/fence.toml");
    assert_eq!(at(&[], &[], "key"), "key … HERE/fence.toml");
    assert_eq!(at(&[], &[], "agent"), "agent kim HERE/fence.toml");
    assert_eq!(at(&[], &[], "serve.listen"), "serve.listen 127.0.0.1:1 HERE/fence.toml");
    let variables = [("FENCE_URL", "http://variable"), ("FENCE_LISTEN", "127.0.0.1:2"), ("FENCE_AGENT", "")];
    assert_eq!(at(&variables, &[], "url"), "url http://variable FENCE_URL");
    assert_eq!(at(&variables, &[], "serve.listen"), "serve.listen 127.0.0.1:2 FENCE_LISTEN");
    assert_eq!(at(&variables, &[], "agent"), "agent kim HERE/fence.toml", "set to nothing is not set");
    assert_eq!(at(&variables, &["--url", "http://flag"], "url"), "url http://flag --url");
    assert_eq!(
        at(&[("FENCE_DB", "postgres://kim:secret@h/d")], &[], "db"),
        "db postgres://kim:…@h/d FENCE_DB"
    );

    write(&sealed, "other.toml", "agent = \"lee\"\n");
    assert_eq!(at(&[("FENCE_CONFIG", "other.toml")], &[], "agent"), "agent lee other.toml");
    let deep = sealed.sh("mkdir deep && cd deep && fence whoami");
    assert!(deep.out.contains("agent  kim\n") && deep.out.contains("http://file"), "{deep:?}");
    let own = sealed
        .sh("rm fence.toml; mkdir -p .config/fence && mv other.toml .config/fence/fence.toml; fence whoami");
    assert!(own.out.contains("agent  lee\n"), "{own:?}");
}

/// Every option of the server can be set.
#[test]
fn every_option_of_the_server_is_a_setting() {
    let sealed = Sealed::sqlite();
    let all =
        format!("{:#?}", fencepost_server::Settings::new("127.0.0.1:7373".parse().expect("an address")));
    let fields = all.lines().filter_map(|line| line.strip_prefix("    ")?.split_once(": "));
    let fields: Vec<_> = fields.map(|(name, _)| name).filter(|name| !name.starts_with(' ')).collect();
    assert!(fields.len() > 15, "{all}");
    let shown = in_force(&sealed, &[], &[]);
    for field in fields {
        let key = match field {
            "names" => "name".into(),
            "tls" => "tls-cert".into(),
            // Set by the OTEL variables.
            "tracer" => continue,
            // Set by the AUTO_UNREAD variables. The pace is the engine's: it forgets a server after five minutes.
            "environment" | "environment_every" => continue,
            field => field.replace('_', "-"),
        };
        assert!(shown.iter().any(|line| line.starts_with(&format!("serve.{key} "))), "{key}: {shown:?}");
    }
    let file = "[serve]\nslack-secret = [\"new-one\", \"old-one\"]\n";
    project(&sealed, file);
    let shown = in_force(&sealed, &[("FENCE_GITHUB_SECRET", "as-agreed")], &[]);
    for line in ["serve.slack-secret … HERE/fence.toml", "serve.github-secret … FENCE_GITHUB_SECRET"] {
        assert!(shown.contains(&line.to_owned()), "{line}: {shown:?}");
    }
    let help = with(&sealed, &[("FENCE_GITHUB_SECRET", "as-agreed")], &["serve", "--help"]);
    assert!(help.out.contains("FENCE_GITHUB_SECRET") && !help.out.contains("as-agreed"), "{help:?}");
    project(&sealed, "[serve]\ntick = \"2s\"\nhistory = \"ever\"\nreader-buffer = 3\n");
    let shown = in_force(&sealed, &[("FENCE_TICK", "3s")], &[]);
    for line in [
        "serve.tick 3s FENCE_TICK",
        "serve.history ever HERE/fence.toml",
        "serve.reader-buffer 3 HERE/fence.toml",
    ] {
        assert!(shown.contains(&line.to_owned()), "{line}: {shown:?}");
    }
    sealed.ok(&["init"]);
    let never = with(&sealed, &[], &["serve", "--tick", "0s"]);
    assert!(never.code == 2 && never.err.contains("it must be more than 0"), "{never:?}");
}

#[test]
fn the_fleet_and_the_reason_for_it() {
    let sealed = Sealed::sqlite();
    let fleet = |variables: &[(&str, &str)], words: &[&str]| {
        let said = with(&sealed, variables, &[words, &["whoami"]].concat());
        let line = said.out.lines().find(|line| line.starts_with("fleet")).map(str::to_owned);
        line.unwrap_or_else(|| panic!("{said:?}"))
    };
    let (url, db) = (("FENCE_URL", "http://variable"), ("FENCE_DB", "variable.db"));
    assert_eq!(
        fleet(&[], &[]),
        "fleet  HERE/.fence/fence.db  (every work tree of this git repository shares it)"
    );
    project(&sealed, "db = \"fleets/one.db\"");
    assert_eq!(fleet(&[], &[]), "fleet  HERE/fleets/one.db  (HERE/fence.toml names it)");
    assert_eq!(fleet(&[db], &[]), "fleet  variable.db  (FENCE_DB names it)");
    assert_eq!(fleet(&[url], &[]), "fleet  http://variable  (FENCE_URL names it)");
    assert_eq!(fleet(&[db, url], &["--db", "flag.db"]), "fleet  flag.db  (--db names it)");
    assert_eq!(fleet(&[db, url], &["--url", "http://flag"]), "fleet  http://flag  (--url names it)");
    let both = with(&sealed, &[], &["--db", "a", "--url", "http://b", "whoami"]);
    assert_eq!(both.code, 2, "{both:?}");
    let wrong = with(&sealed, &[("FENCE_URL", "fence.db")], &["list"]);
    assert_eq!(
        wrong.err.lines().next(),
        Some("error: `fence.db` (FENCE_URL) is not the address of a server")
    );
}

#[test]
fn two_fleets_at_once_are_refused() {
    let sealed = Sealed::sqlite();
    let both = [("FENCE_URL", "http://127.0.0.1:9"), ("FENCE_DB", "postgres://kim:secret@h/d")];
    let refused = "error: two fleets are named: the server http://127.0.0.1:9 (FENCE_URL), and the database \
                   postgres://kim:…@h/d (FENCE_DB)\nhint: unset one of the two; --url or --db decides for one command";
    for words in [&["list"][..], &["key", "add", "kim", "--role", "admin"], &["claim", "--keep"]] {
        let said = with(&sealed, &both, words);
        assert_eq!((said.code, said.err.as_str()), (1, refused), "{words:?}: {said:?}");
    }
    // Commands that create or serve a database ignore FENCE_URL.
    let both = [both[0], ("FENCE_DB", "here.db")];
    let made = with(&sealed, &both, &["init"]);
    assert_eq!((made.code, made.out.as_str()), (0, "the fleet is at here.db: FENCE_DB names it"), "{made:?}");
    let warned = "warning: other commands will be refused: two fleets are named: the server http://127.0.0.1:9 (FENCE_URL)";
    assert!(made.err.starts_with(warned), "{made:?}");
    let added = with(&sealed, &both, &["--db", "here.db", "add", "one", "--board", "auth"]);
    assert_eq!(added.code, 0, "{added:?}");
    let server = crate::serve::Served::start_with(&sealed, &[], &both);
    let there = with(&sealed, &both, &["--url", &format!("http://{}", server.address), "show", "auth-1"]);
    assert!(there.code == 0 && there.out.contains("one"), "{there:?}");
    let alone = with(&sealed, &both[..1], &["init"]);
    assert!(alone.out.contains("HERE/.fence/fence.db"), "{alone:?}");
    assert_eq!(alone.err, "warning: other commands use http://127.0.0.1:9: FENCE_URL names it");
    // Also in one file.
    write(&sealed, "both.toml", "url = \"http://127.0.0.1:9\"\ndb = \"here.db\"\n");
    let filed = with(&sealed, &[("FENCE_CONFIG", "both.toml")], &["list"]);
    assert!(filed.code == 1 && filed.err.contains("http://127.0.0.1:9 (both.toml)"), "{filed:?}");
    assert!(filed.err.contains("here.db (both.toml)"), "{filed:?}");
}

#[test]
fn invalid_settings_are_refused() {
    let sealed = Sealed::sqlite();
    sealed.ok(&["init"]);
    let file = std::fs::canonicalize(sealed.path()).expect("the directory").join("fence.toml");
    let file = file.display().to_string();
    let mut shown = String::new();
    for text in [
        "ulr = \"x\"",
        "[serve]\nport = 1",
        "run = \"me\"",
        "url = 1.5",
        "url =",
        "agent = \"kim\"\n= 1",
        "[serve]\nlisten = \"here\"",
    ] {
        write(&sealed, "fence.toml", text);
        // Settings of a command matter only to that command.
        let words: &[&str] = if text.contains("listen") { &["serve"] } else { &["list"] };
        let said = with(&sealed, &[("FENCE_CONFIG", &file)], words);
        let hint = said.err.split(", serve.").next().unwrap_or_default();
        shown.push_str(&format!("{text}\n  {}\n  (exit {})\n", hint.replace('\n', "\n  "), said.code));
    }
    insta::assert_snapshot!(shown, @r#"
    ulr = "x"
      error: HERE/fence.toml: there is no setting `ulr`
      hint: the settings are url, db, key, ca, agent, hook.strict, hook.guard, hook.reads, work.max-concurrent, work.profile, work.no-verdict, work.prompts, work.worktree, work.base, work.merge-into, work.setup, work.copy, work.trees, work.ttl, work.max-time, work.stall, work.shutdown-timeout
      (exit 1)
    [serve]
    port = 1
      error: HERE/fence.toml: there is no setting `serve.port`
      hint: the settings are url, db, key, ca, agent, hook.strict, hook.guard, hook.reads, work.max-concurrent, work.profile, work.no-verdict, work.prompts, work.worktree, work.base, work.merge-into, work.setup, work.copy, work.trees, work.ttl, work.max-time, work.stall, work.shutdown-timeout
      (exit 1)
    run = "me"
      error: HERE/fence.toml: there is no setting `run`
      hint: the settings are url, db, key, ca, agent, hook.strict, hook.guard, hook.reads, work.max-concurrent, work.profile, work.no-verdict, work.prompts, work.worktree, work.base, work.merge-into, work.setup, work.copy, work.trees, work.ttl, work.max-time, work.stall, work.shutdown-timeout
      (exit 1)
    url = 1.5
      error: HERE/fence.toml: `url` is not a text, a number, true or false, or a list of such
      hint: the command's --help says what it takes (docs/errors.md#invalid)
      (exit 1)
    url =
      error: HERE/fence.toml: line 1: string values must be quoted, expected literal string
      hint: the command's --help says what it takes (docs/errors.md#invalid)
      (exit 1)
    agent = "kim"
    = 1
      error: HERE/fence.toml: line 2: unquoted keys cannot be empty, expected letters, numbers, `-`, `_`
      hint: the command's --help says what it takes (docs/errors.md#invalid)
      (exit 1)
    [serve]
    listen = "here"
      error: HERE/fence.toml: invalid value 'here' for '--listen <ADDR>': not an address such as 7373, 127.0.0.1:7373, or 0.0.0.0:7373 for every network
      hint: the command's --help says what it takes (docs/errors.md#invalid)
      (exit 1)
    "#);
    let json = with(&sealed, &[("FENCE_CONFIG", "nowhere.toml")], &["--json", "list"]);
    assert!(
        json.err
            .starts_with("{\"error\":{\"code\":\"invalid\",\"message\":\"nowhere.toml: it cannot be read"),
        "{json:?}"
    );
}

on_both! {
    fn keys_are_made_listed_and_revoked(sealed: Sealed) {
        sealed.ok(&["init"]);
        let admin = sealed.ok(&["key", "add", "kim", "--role", "admin", "-q"]);
        assert!(admin.starts_with("fence_") && admin.len() == 70, "{admin}");
        let show = |line: &str| {
            let shown = sealed.show(&[&["--key", &admin], line.split(' ').collect::<Vec<_>>().as_slice()].concat());
            let shown = shown.replace(&format!("--key {admin} "), "");
            let secret = shown.find("fence_").map(|at| shown[at..at + 70].to_owned());
            without_times(&secret.map_or(shown.clone(), |secret| shown.replace(&secret, "SECRET")))
        };
        let commands = [
            "key add builder --role agent --agent codex-2",
            "key add lee --role agent",
            "key add eye --role reader --agent lee",
            "key add builder --role reader",
            "key list",
            "key revoke builder",
            "key revoke nobody",
            "key revoke kim",
            "key list",
            "key list --all",
        ];
        insta::assert_snapshot!("keys", commands.map(show).join("\n"));
        sealed.readable();
        let events = sealed.ok(&["--key", &admin, "--json", "events", "--kind", "key"]);
        assert!(events.contains("key.added") && !events.contains("fence_"), "{events}");
        assert!(!events.contains("\"agent\":\"codex-2\""), "who makes a key is not whom it is for: {events}");
    }
}

/// A password of the database is shown nowhere, in whatever form the address is, and becomes no file's name.
#[test]
fn no_command_shows_a_password() {
    let forms = [
        "postgres://kim:SECRET@127.0.0.1:1/db",
        "postgres://kim:SE?CRET@127.0.0.1:1/db",
        "postgres://127.0.0.1:1/db?user=kim&p%61ssword=SECRET",
        "host=127.0.0.1 port=1 user=kim password=SECRET",
        "host=127.0.0.1 port=1 user=kim password = 'SE CRET'",
        "sub/host=h password=SECRET/db",
        "sqlite:host=h password=SECRET",
    ];
    let commands: [&[&str]; 6] =
        [&["whoami"], &["config", "show"], &["doctor"], &["list"], &["claim", "--keep"], &["top", "--once"]];
    // These ignore FENCE_URL.
    let of_databases: [&[&str]; 2] = [&["init"], &["serve", "--listen", "127.0.0.1:0"]];
    let sealed = Sealed::sqlite();
    for form in forms {
        let all = commands.iter().flat_map(|words| [("FENCE_DB", words), ("FENCE_URL", words)]);
        for (variable, words) in all.chain(of_databases.iter().map(|words| ("FENCE_DB", words))) {
            for json in [&[][..], &["--json"]] {
                let said = with(&sealed, &[(variable, form)], &[json, words].concat());
                let is_shown = said.out.contains("CRET") || said.err.contains("CRET");
                assert!(!is_shown, "{variable}={form} {words:?}: {said:?}");
                assert!(!of_databases.contains(words) || said.code != 0, "{said:?}");
            }
        }
        let file = format!("db = {form:?}\nurl = {form:?}\n");
        write(&sealed, "project/fence.toml", &file);
        let shown = sealed.sh("cd project && fence trust; fence config show; fence trust --revoke");
        assert!(shown.out.contains("db") && !format!("{shown:?}").contains("CRET"), "{shown:?}");
    }
    // By git's own command; `fence git install --ask` refuses such an address.
    let shown = sealed.sh(
        "git init -q && git config fence.ask 'http://kim:SECRET@127.0.0.1:9' && fence git status && fence git status --json && fence git install; exit $?",
    );
    assert!(
        shown.code == 0 && shown.out.contains("kim") && !format!("{shown:?}").contains("CRET"),
        "{shown:?}"
    );
    let names = sealed.sh("find . -not -path './.git/*'");
    assert!(!names.out.contains("CRET"), "{names:?}");
}
