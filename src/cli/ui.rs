//! The progress bar: on a terminal only, and only for work that takes longer than a moment.

use std::io::IsTerminal;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::progress::Progress;

use super::Format;

/// Nothing is drawn before so much time has passed: quick commands stay quiet.
const DRAW_AFTER: Duration = Duration::from_millis(250);

/// Reports to the terminal, if there is one.
pub(super) struct Ui {
    enabled: bool,
    quiet: bool,
    format: Format,
    started: Instant,
    bar: Mutex<Option<ProgressBar>>,
}

impl Ui {
    pub(super) fn new(quiet: bool, format: Format) -> Ui {
        Ui {
            quiet,
            format,
            enabled: !quiet && std::io::stderr().is_terminal(),
            started: Instant::now(),
            bar: Mutex::default(),
        }
    }

    /// The user wants to know nothing but the result.
    pub(super) fn is_quiet(&self) -> bool {
        self.quiet
    }

    /// How the result is shown.
    pub(super) fn format(&self) -> Format {
        self.format
    }

    /// Something the user should know although the work goes on.
    pub(super) fn warn(&self, text: &str) {
        use std::io::Write;
        let _ = writeln!(std::io::stderr().lock(), "warning: {text}");
    }

    fn with_bar(&self, act: impl FnOnce(&mut Option<ProgressBar>)) {
        act(&mut self.bar.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl Progress for Ui {
    fn begin(&self, stage: &'static str, objects: u64, bytes: u64) {
        if !self.enabled {
            return;
        }
        let bar = ProgressBar::with_draw_target(
            Some(if bytes > 0 { bytes } else { objects }),
            ProgressDrawTarget::hidden(),
        );
        let template = if bytes > 0 {
            "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}, {eta} left"
        } else {
            "{msg} {spinner} {elapsed}"
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.set_message(stage);
        self.with_bar(|slot| *slot = Some(bar));
        self.reveal();
    }

    fn advance(&self, objects: u64, bytes: u64) {
        self.with_bar(|slot| {
            if let Some(bar) = slot {
                bar.inc(if bytes > 0 { bytes } else { objects });
            }
        });
        self.reveal();
    }

    fn end(&self) {
        self.with_bar(|slot| {
            if let Some(bar) = slot.take() {
                bar.finish_and_clear();
            }
        });
    }
}

impl Ui {
    fn reveal(&self) {
        if self.enabled && self.started.elapsed() >= DRAW_AFTER {
            self.with_bar(|slot| {
                if let Some(bar) = slot
                    && bar.is_hidden()
                {
                    bar.set_draw_target(ProgressDrawTarget::stderr());
                    bar.enable_steady_tick(Duration::from_millis(100));
                }
            });
        }
    }
}
