//! `turnbuckle options`: the option table in its several forms.

use std::process::ExitCode;

use anyhow::bail;
use turnbuckle_server::config;

#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Explain this key
    #[arg(conflicts_with_all = ["markdown", "sample", "man", "compatibility", "counters"])]
    key: Option<String>,
    /// Print docs/options.md
    #[arg(long, conflicts_with_all = ["sample", "man"])]
    markdown: bool,
    /// Print deploy/turnserver.conf.sample
    #[arg(long, conflicts_with = "man")]
    sample: bool,
    /// Print docs/compatibility.md
    #[arg(long, conflicts_with_all = ["markdown", "sample", "man"])]
    compatibility: bool,
    /// Print docs/counters.md
    #[arg(long, conflicts_with_all = ["markdown", "sample", "man", "compatibility"])]
    counters: bool,
    /// Print the manual page
    #[arg(long)]
    man: bool,
}

pub(crate) fn run(arguments: &Arguments) -> anyhow::Result<ExitCode> {
    let text = match arguments {
        Arguments { markdown: true, .. } => config::markdown(),
        Arguments { sample: true, .. } => config::sample(),
        Arguments {
            compatibility: true,
            ..
        } => config::compatibility(),
        Arguments { counters: true, .. } => turnbuckle_server::counters_page(),
        Arguments { man: true, .. } => config::man(),
        Arguments { key: Some(key), .. } => {
            match config::help_one(key.trim_start_matches('-'), crate::width()) {
                Some(text) => text,
                None => bail!("`{key}` is not a known key; {}", config::suggest(key)),
            }
        }
        Arguments { key: None, .. } => config::help("turnbuckle serve", "", crate::width()),
    };
    crate::print(&text)?;
    Ok(ExitCode::SUCCESS)
}
