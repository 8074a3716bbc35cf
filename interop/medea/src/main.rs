//! medea's client of coturn's console, as it is published: says which sessions a user has, ends them, and says which are left.
//!
//! Arguments: address and port of the console, its password, the user.

use std::env;
use std::process::ExitCode;

use medea_coturn_telnet_client::{CoturnTelnetConnection, CoturnTelnetError};

#[tokio::main]
async fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let [address, password, user] = &arguments[..] else {
        eprintln!("usage: medea-console ADDRESS:PORT PASSWORD USER");
        return ExitCode::from(2);
    };
    match run(address, password, user).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run(address: &str, password: &str, user: &str) -> Result<(), CoturnTelnetError> {
    let mut console = CoturnTelnetConnection::connect(address, password.to_owned()).await?;
    console.ping().await?;
    let sessions = console.print_sessions(user.to_owned()).await?;
    println!("{}", sessions.join(" "));
    console.delete_sessions(sessions).await?;
    println!("{}", console.print_sessions(user.to_owned()).await?.join(" "));
    Ok(())
}
