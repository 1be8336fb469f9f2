//! A terminal with a program on it: keys are typed, and the screen is read as a person sees it.

use crate::sealed::{Sealed, eventually};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    io::{Read, Write},
    process::{Child, ChildStdin, Stdio},
    sync::{Arc, Mutex},
    thread::JoinHandle,
};

/// `script` gives the program a pseudo terminal. The modes of the terminal before and after are in the files `before` and `after`.
pub struct Terminal {
    pid: std::path::PathBuf,
    child: Child,
    keys: Option<ChildStdin>,
    shown: Arc<Mutex<Vec<u8>>>,
    reads: Option<JoinHandle<()>>,
    size: (usize, usize),
}

impl Terminal {
    pub fn start(sealed: &Sealed, (columns, rows): (usize, usize), command: &str) -> Self {
        let pid = sealed.path().join("pid");
        let _ = std::fs::remove_file(&pid);
        sealed.script("on-terminal.sh", &format!("echo $$ > pid.new; mv pid.new pid; exec {command}"));
        let script = format!(
            "stty cols {columns} rows {rows}; stty -g > before; ./on-terminal.sh; echo ended with $?; stty -g > after"
        );
        let mut child = sealed.command("env");
        child.args(["--default-signal=HUP,INT,QUIT,TERM", "script", "-qec", &script, "/dev/null"]);
        let mut child = child.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("script");
        let mut out = child.stdout.take().expect("its output");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let all = shown.clone();
        // A thread reads, so that waiting has a limit.
        let reads = std::thread::spawn(move || {
            let mut some = [0; 4096];
            while let Some(n) = out.read(&mut some).ok().filter(|n| *n > 0) {
                all.lock().expect("not poisoned").extend(&some[..n]);
            }
        });
        let keys = child.stdin.take();
        Self { pid, child, keys, shown, reads: Some(reads), size: (columns, rows) }
    }

    pub fn press(&mut self, keys: &str) {
        let pipe = self.keys.as_mut().expect("it is open");
        pipe.write_all(keys.as_bytes()).and_then(|()| pipe.flush()).expect("typed");
    }

    /// Sends a signal to the program.
    pub fn signal(&self, signal: Signal) {
        let pid = eventually("the program has started", || {
            std::fs::read_to_string(&self.pid).ok()?.trim().parse().ok().and_then(Pid::from_raw)
        });
        kill_process(pid, signal).expect("it is there");
    }

    /// All that was written to the terminal.
    pub fn raw(&self) -> String {
        String::from_utf8_lossy(&self.shown.lock().expect("not poisoned")).into_owned()
    }

    /// The screen now.
    pub fn screen(&self) -> String {
        Emulator::of(&self.raw(), self.size).text()
    }

    /// Waits until the screen is like this.
    #[track_caller]
    pub fn until(&self, what: &str, mut is_so: impl FnMut(&str) -> bool) -> String {
        eventually(what, || Some(self.screen()).filter(|screen| is_so(screen)))
    }

    #[track_caller]
    pub fn shows(&self, text: &str) -> String {
        self.until(text, |screen| screen.contains(text))
    }

    /// Waits for the end of the program, and checks that the terminal is as it was. Returns the exit code.
    #[track_caller]
    pub fn ended(mut self, sealed: &Sealed) -> i32 {
        let code = eventually("it ends", || {
            Some(self.raw().split_once("ended with ")?.1.split_once('\n')?.0.to_owned())
        });
        drop(self.keys.take());
        self.child.wait().expect("its end");
        self.reads.take().expect("a thread").join().expect("no panic");
        let modes =
            ["before", "after"].map(|file| std::fs::read_to_string(sealed.path().join(file)).expect("modes"));
        assert_eq!(modes[0], modes[1], "the modes of the terminal");
        let raw = self.raw();
        let last = |text: &str| raw.rfind(text).unwrap_or_else(|| panic!("{text:?} is missing: {raw:?}"));
        assert!(last("\x1b[?1049l") > last("\x1b[?1049h"), "the user's text is back: {raw:?}");
        assert!(last("\x1b[?25h") > last("\x1b[?25l"), "the cursor is back: {raw:?}");
        code.trim().parse().unwrap_or_else(|_| panic!("{code:?}"))
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the terminal showed:\n{}\n{:?}", self.screen(), self.raw());
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// As much of a terminal as a view needs. Any other sequence fails the test: it would be somebody else's.
struct Emulator {
    cells: Vec<Vec<char>>,
    at: (usize, usize),
}

impl Emulator {
    fn of(raw: &str, (columns, rows): (usize, usize)) -> Self {
        let mut screen = Self { cells: vec![vec![' '; columns]; rows], at: (0, 0) };
        let mut rest = raw;
        while let Some(c) = rest.chars().next() {
            rest = &rest[c.len_utf8()..];
            match c {
                '\x1b' => {
                    let Some(sequence) = rest.strip_prefix('[') else { break };
                    let Some(end) = sequence.find(|c: char| c.is_ascii_alphabetic()) else { break };
                    screen.act(&sequence[..end], &sequence[end..=end]);
                    rest = &sequence[end + 1..];
                }
                '\r' => screen.at.1 = 0,
                '\n' => screen.at.0 += 1,
                c => screen.put(c),
            }
        }
        screen
    }

    fn act(&mut self, numbers: &str, verb: &str) {
        match (numbers, verb) {
            ("?1049", "h" | "l") | ("2" | "", "J") => self.cells.iter_mut().for_each(|row| row.fill(' ')),
            (at, "H") => {
                let mut at = at.split(';').map(|n| n.parse().unwrap_or(1).max(1) - 1);
                self.at = (at.next().unwrap_or(0), at.next().unwrap_or(0));
            }
            ("?25", "h" | "l") => {}
            (style, "m") => assert!(style.chars().all(|c| c.is_ascii_digit() || c == ';'), "{style:?}"),
            other => panic!("a sequence that is not ours: {other:?}"),
        }
    }

    fn put(&mut self, c: char) {
        let turns = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        assert!(!c.is_control() && !turns, "a hidden character: {c:?}");
        if let Some(cell) = self.cells.get_mut(self.at.0).and_then(|row| row.get_mut(self.at.1)) {
            *cell = c;
        }
        self.at.1 += 1;
    }

    fn text(&self) -> String {
        let line = |row: &Vec<char>| row.iter().collect::<String>().trim_end().to_owned();
        self.cells.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}
