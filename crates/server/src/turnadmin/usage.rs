//! What `turnadmin -h` prints.

/// Commands and options, with the names that coturn gives them.
pub(super) const TEXT: &str = "\
Usage: turnadmin COMMAND [OPTIONS]

Users of the long-term credential mechanism
  -a, --add                   add a user, or give it another password   -u -r -p
  -d, --delete                delete a user                             -u -r
  -l, --list                  list users                                [-r]
  -k, --key                   print a user's key                        -u -r -p
Secrets of time-limited credentials (TURN REST API)
  -s, --set-secret VALUE      add a secret                              -r
  -S, --show-secret           list secrets                              [-r]
  -X, --delete-secret VALUE   delete a secret                           -r
      --delete-all-secrets    delete every secret of a realm            -r
Realms
  -O, --add-origin            have an origin belong to a realm          -o -r
  -R, --del-origin            have an origin belong to no realm         -o
  -I, --list-origins          list origins                              [-r]
  -g, --set-realm-option      set quotas and rates of a realm           -r, and at least one of
                              --max-bps, --total-quota, --user-quota (a NUMBER; 0 removes the option)
  -G, --list-realm-options    list quotas and rates                     [-r]
Administrators
  -A, --add-admin             add an administrator                      -u -p [-r]
  -D, --delete-admin          delete an administrator                   -u
  -L, --list-admin            list administrators
Passwords
  -P, --generate-encrypted-password       print a password's hash       -p
  -E, --generate-encrypted-password-aes   print it encrypted            -f -p
  -x, --key-path FILE                     write a new key for that
  -v, --verify TEXT                       print what -E has encrypted   -f

Options
  -b, --db, --userdb FILE     SQLite file; without it the first that exists of /var/db/turndb,
                              /usr/local/var/db/turndb and /var/lib/turn/turndb
  -N, --redis-userdb WORDS    Redis or Valkey server, in the words of that option of turnserver
  -e, --psql-userdb, --sql-userdb CONNECTION   PostgreSQL, by libpq's words or as a URI
  -M, --mysql-userdb CONNECTION                MySQL or MariaDB; with -f the password is decrypted
  -J, --mongo-userdb URI                       MongoDB, in a build with the feature `mongo`
  -u, --user NAME   -r, --realm REALM   -p, --password PASSWORD   -o, --origin ORIGIN
  -f, --file-key-path FILE    key of -E and -v
  -h, --help                  print this
";
