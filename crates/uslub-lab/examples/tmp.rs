use uslub_lab::*;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let kind = Kind::ALL.iter().find(|(n, _)| *n == a[1]).unwrap().1;
    let mut s = Sweep {
        load: Load::usual(kind),
        cpus: a[2].split(',').map(|x| x.parse().unwrap()).collect(),
        nodes: a[3].split(',').map(|x| x.parse().unwrap()).collect(),
        llc: 8,
        memory_nodes: vec![],
        settings: vec![],
        costs: Costs::default(),
        warm_us: 0,
        run_us: a[4].parse().unwrap(),
    };
    s.warm_us = s.run_us;
    for x in &a[5..] {
        if let Some(v) = x.strip_prefix("warm=") {
            s.warm_us = v.parse().unwrap();
        } else if let Some(v) = x.strip_prefix("mem=") {
            s.memory_nodes = v.split(',').map(|x| x.parse().unwrap()).collect();
        } else if let Some(v) = x.strip_prefix("work=") {
            s.load.work = v.parse().unwrap();
        } else if let Some(v) = x.strip_prefix("seed=") {
            s.load.seed = v.parse().unwrap();
        } else if let Some(v) = x.strip_prefix("link=") {
            s.load.link = Link::ALL.iter().find(|(n, _)| *n == v).unwrap().1;
        } else if let Some(v) = x.strip_prefix("nowait=") {
            s.load.nowait = v == "1";
        } else if let Some(v) = x.strip_prefix("cost:") {
            s.costs.set(v).unwrap();
        } else {
            s.settings.push(values_of(x).unwrap());
        }
    }
    let t = std::time::Instant::now();
    let r = s.run(|| None, |_, _| ()).unwrap();
    print!("{}", table(&r));
    for p in &r.points {
        for l in &p.figures.locks {
            if l.wait > 0.5 {
                println!("{} {:?}", p.cpus, l);
            }
        }
    }
    println!("real {:?}", t.elapsed());
}
