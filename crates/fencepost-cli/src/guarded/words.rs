//! The words of a line, as a net sees them: whatever quotes, separators and expansions stand around them.

/// A word of a line, in lower case.
pub struct Word {
    pub text: String,
    /// It is the last part of a path, and can only be a program: `/usr/bin/git`, `alpine/helm:3.14`, but not `docs/push`.
    pub is_program: bool,
}

/// The words of the line, read in several ways: a backslash quotes (`pu\sh`), separates the parts of a path, or begins `\n`; quotes join
/// what stands around them, or separate as in other languages (`f'git push'`).
pub fn readings(line: &str) -> [Vec<Word>; 4] {
    let breaks =
        ["\\\n", "\\n", "\\t", "\\r"].iter().fold(line.to_owned(), |text, escape| text.replace(escape, " "));
    [
        words(&line.replace("\\\n", "").replace('\\', "")),
        words(&breaks.replace('\\', "/")),
        words(&breaks),
        words(&breaks.replace(['\'', '"'], " ")),
    ]
}

pub fn words(line: &str) -> Vec<Word> {
    let text = without_quotes(line).to_lowercase();
    let mut words = Vec::new();
    for word in text.split(|c: char| !(c.is_alphanumeric() || "-_.:/@=+".contains(c))) {
        add(word, &mut words);
        // `NAME=push`, `npm@latest`, `${x:-push}`.
        let parts = word.split(['=', '@', ':']).filter(|part| *part != word);
        parts.for_each(|part| add(part.trim_start_matches(['-', '+']), &mut words));
    }
    words
}

fn add(word: &str, words: &mut Vec<Word>) {
    let word = word.trim_end_matches('+');
    let name = word.rsplit('/').next().and_then(|name| name.split(':').next()).unwrap_or(word);
    let name = name.trim_start_matches(['-', '+']);
    let short = [".exe", ".cmd", ".bat"].iter().find_map(|ending| name.strip_suffix(ending)).unwrap_or(name);
    let mut push = |text: &str, is_program| words.push(Word { text: text.to_owned(), is_program });
    push(short, true);
    // `git-push` in git's own directory is `git push`.
    if let Some(verb) = short.strip_prefix("git-") {
        push("git", true);
        push(verb, false);
    }
    // `s/x/git push/e`, but not `docs/push`.
    push(word.split('/').next().unwrap_or(word), false);
    push(word, false);
}

/// Without quotes, which join what stands around them, and without `$NAME`, `$1` and `${NAME-`, which separate. `$'text'` is text.
fn without_quotes(line: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(line.len()), line);
    while let Some(at) = rest.find(['\'', '"', '$']) {
        out.push_str(&rest[..at]);
        let is_variable = rest[at..].starts_with('$');
        rest = &rest[at + 1..];
        let inner = rest.trim_start_matches('{');
        let end = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
        let is_short = inner.starts_with(|c: char| c.is_ascii_digit());
        let name = if is_short { 1 } else { inner.find(end).unwrap_or(inner.len()) };
        if is_variable && name > 0 {
            out.push(' ');
            rest = inner[name..].trim_start_matches([':', '-', '+', '=', '?']);
        }
    }
    out + rest
}
