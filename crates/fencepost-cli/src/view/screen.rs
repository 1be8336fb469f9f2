//! The terminal as a screen that a view draws on, and the keys that are typed there.

use super::text;
use crate::{output::streams, supervise::Signals};
use crossterm::{
    ExecutableCommand, cursor,
    event::{Event, EventStream, KeyCode, KeyEvent, KeyEventKind, KeyModifiers},
    terminal::{EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode},
};
use fencepost::{Error, Result};
use futures_util::StreamExt;
use ratatui::{Frame, Terminal, backend::CrosstermBackend};
use rustix::{
    process::{Signal, getpgrp, getpid, kill_process},
    termios::tcgetpgrp,
};
use std::{
    io::{self, BufWriter, Stdout},
    sync::{
        Once,
        atomic::{AtomicBool, Ordering},
    },
};
use tokio::{sync::mpsc, task::JoinHandle};

/// Is the terminal ours? It is taken back by a panic too, whose message would be lost otherwise.
static IS_OPEN: AtomicBool = AtomicBool::new(false);

/// The terminal with the user's text put aside, and without line editing or echo. Dropping it, or a panic, restores the terminal.
///
/// It handles TERM, INT, HUP and QUIT, so that they do not end the process with the terminal in this state: the caller gets them as
/// [`Input::Signal`], and ends or drains. Ctrl-C and Ctrl-\ send INT and QUIT to this process, as they do without a view. A
/// caller with [`Signals`] of its own gets each signal there, too, and ignores it here. Ctrl-Z does nothing: a process that
/// renews leases must not stop.
#[derive(Debug)]
pub struct Screen {
    terminal: Drawing,
    signals: Signals,
    typed: mpsc::UnboundedReceiver<Event>,
    reader: JoinHandle<()>,
}

type Drawing = Terminal<CrosstermBackend<BufWriter<Stdout>>>;

/// Something happened at the terminal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Input {
    Key(Key),
    /// The window has another size, or the process was stopped and continues: draw again.
    Redraw,
    /// TERM, INT, QUIT or HUP. HUP also stands for a terminal that is gone.
    Signal(Signal),
}

/// A key that a view may answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Key {
    Up,
    Down,
    PageUp,
    PageDown,
    Home,
    End,
    Enter,
    Esc,
    Char(char),
}

impl Screen {
    /// Opens the screen; `None` if there is no terminal, or if this process is in its background: it would be stopped.
    pub fn open() -> Result<Option<Self>> {
        if streams::width().is_none() || !is_foreground() {
            return Ok(None);
        }
        restore_on_panic();
        let signals =
            Signals::listen_to(&[Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT, Signal::CONT])?;
        enter().map_err(broken)?;
        let terminal = blank().inspect_err(|_| leave()).map_err(broken)?;
        let (sender, typed) = mpsc::unbounded_channel();
        // A task of its own: the stream wakes only the task that polled it first.
        let reader = tokio::spawn(async move {
            let mut events = EventStream::new();
            while let Some(Ok(event)) = events.next().await {
                if sender.send(event).is_err() {
                    return;
                }
            }
        });
        Ok(Some(Self { terminal, signals, typed, reader }))
    }

    /// Draws a frame. Only cells that differ from the last frame are written.
    pub fn draw(&mut self, draw: impl FnOnce(&mut Frame)) -> Result<()> {
        // A panic of another thread, or a stop, has given the terminal back.
        if !IS_OPEN.load(Ordering::SeqCst) {
            if !is_foreground() {
                return Ok(());
            }
            enter().map_err(broken)?;
            // Not `clear`: that asks the terminal for the cursor's position, and the reader of keys takes the answer.
            self.terminal = blank().map_err(broken)?;
        }
        let safely = |frame: &mut Frame| {
            draw(frame);
            text::make_safe(frame.buffer_mut());
        };
        self.terminal.draw(safely).map(drop).map_err(broken)
    }

    /// The next key or signal. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Input {
        loop {
            let input = tokio::select! {
                biased;
                signal = self.signals.next() => match signal {
                    // The shell has used the terminal meanwhile.
                    Signal::CONT => {
                        leave();
                        Some(Input::Redraw)
                    }
                    signal => Some(Input::Signal(signal)),
                },
                () = streams::reader_gone() => Some(Input::Signal(Signal::HUP)),
                Some(event) = self.typed.recv() => input(&event),
            };
            if let Some(input) = input {
                return input;
            }
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.reader.abort();
        leave();
    }
}

/// What an event of the terminal means to a view. Ctrl-C and Ctrl-\ become signals on the way.
fn input(event: &Event) -> Option<Input> {
    let key = match event {
        Event::Resize(..) => return Some(Input::Redraw),
        Event::Key(key) if key.kind != KeyEventKind::Release => key,
        _ => return None,
    };
    match signal_of(key) {
        Some(signal) => {
            // It comes back by `signals`, and reaches whoever else listens.
            let _ = kill_process(getpid(), signal);
            None
        }
        None => key_of(key).map(Input::Key),
    }
}

fn signal_of(key: &KeyEvent) -> Option<Signal> {
    match key.code {
        KeyCode::Char('c') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Signal::INT),
        // crossterm reads the byte of Ctrl-\ as Ctrl-4.
        KeyCode::Char('4' | '\\') if key.modifiers.contains(KeyModifiers::CONTROL) => Some(Signal::QUIT),
        _ => None,
    }
}

fn key_of(key: &KeyEvent) -> Option<Key> {
    Some(match key.code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Esc,
        KeyCode::Char(c) if !key.modifiers.intersects(KeyModifiers::CONTROL | KeyModifiers::ALT) => {
            Key::Char(c)
        }
        _ => return None,
    })
}

/// Do the keys of the terminal come to this process?
fn is_foreground() -> bool {
    tcgetpgrp(io::stdin()).is_ok_and(|group| group == getpgrp())
}

/// A screen that has nothing on it yet.
fn blank() -> io::Result<Drawing> {
    Terminal::new(CrosstermBackend::new(streams::for_views()))
}

fn enter() -> io::Result<()> {
    IS_OPEN.store(true, Ordering::SeqCst);
    let entered = enable_raw_mode()
        .and_then(|()| streams::for_views().execute(EnterAlternateScreen)?.execute(cursor::Hide).map(drop));
    entered.inspect_err(|_| leave())
}

/// Restores the terminal, if it is not restored yet. A failure is ignored: nobody sees a terminal that is gone.
fn leave() {
    if IS_OPEN.swap(false, Ordering::SeqCst) {
        let mut out = streams::for_views();
        let _ = out.execute(cursor::Show).and_then(|out| out.execute(LeaveAlternateScreen)).map(drop);
        let _ = disable_raw_mode();
    }
}

fn restore_on_panic() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            leave();
            before(panic);
        }));
    });
}

fn broken(e: io::Error) -> Error {
    Error::unavailable(format!("the terminal cannot be used: {e}"))
}
