//! Asks pkg-config where libspark_comm is. PKG_CONFIG names another program, PKG_CONFIG_PATH another
//! folder with spark_comm.pc.
use std::env;
use std::process::{exit, Command};

fn main() {
    for name in ["PKG_CONFIG", "PKG_CONFIG_PATH"] {
        println!("cargo:rerun-if-env-changed={name}");
    }
    let program = env::var("PKG_CONFIG").unwrap_or_else(|_| "pkg-config".into());
    let output = Command::new(&program).args(["--libs", "spark_comm >= 0.1"]).output();
    let flags = match output {
        Ok(output) if output.status.success() => String::from_utf8_lossy(&output.stdout).into_owned(),
        Ok(output) => {
            eprintln!("{program}: {}", String::from_utf8_lossy(&output.stderr));
            eprintln!("install spark_comm (make install), or point PKG_CONFIG_PATH at its lib/pkgconfig");
            exit(1);
        }
        Err(error) => {
            eprintln!("cannot run {program}: {error}");
            exit(1);
        }
    };
    for flag in flags.split_whitespace() {
        if let Some(folder) = flag.strip_prefix("-L") {
            println!("cargo:rustc-link-search=native={folder}");
        } else if let Some(library) = flag.strip_prefix("-l") {
            println!("cargo:rustc-link-lib=dylib={library}");
        }
    }
}
