use uslub_lab::*;
fn main(){
  let a: Vec<String> = std::env::args().collect();
  let kind = Kind::ALL.iter().find(|(n,_)| *n==a[1]).unwrap().1;
  for cpus in a[2].split(',') { let cpus: usize = cpus.parse().unwrap();
   let t=std::time::Instant::now();
   let e = Experiment{ machine: Topology::new(cpus, a[3].parse().unwrap(), 8, &[]).unwrap(), costs: Costs::default(), load: Load::usual(kind), settings: a[5..].to_vec(), warm_us: a[4].parse::<u64>().unwrap()/2, run_us: a[4].parse().unwrap() };
   println!("{cpus} {:?} real {:?}", e.run(None), t.elapsed());
  }
}
