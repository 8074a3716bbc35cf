//! Verdicts on addresses.

mod own;
mod rules;
mod special;

use super::*;

/// Returns the strict persona with rules written as `allow RANGE` and `deny RANGE`.
fn strict(rules: &[&str]) -> Policy {
    Policy::new(PolicyRules {
        rules: parse(rules),
        ..PolicyRules::strict()
    })
}

fn coturn(rules: &[&str]) -> Policy {
    Policy::new(PolicyRules {
        rules: parse(rules),
        ..PolicyRules::coturn()
    })
}

fn parse(rules: &[&str]) -> Vec<Rule> {
    let rule = |text: &&str| {
        let (action, range) = text.split_once(' ').unwrap();
        let action = match action {
            "allow" => Action::Allow,
            "deny" => Action::Deny,
            other => panic!("{other}"),
        };
        Rule {
            action,
            range: range.parse().unwrap(),
        }
    };
    rules.iter().map(rule).collect()
}

/// Returns the verdict on an address at port 5000.
fn verdict(policy: &Policy, ip: impl Into<IpAddr>) -> Result<IpAddr, Forbidden> {
    let peer = policy.check(SocketAddr::new(ip.into(), 5000));
    peer.map(|peer| peer.address().ip())
}

fn text_verdict(policy: &Policy, text: &str) -> Result<(), Forbidden> {
    verdict(policy, ip(text)).map(drop)
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
