import ca.uhn.fhir.context.FhirContext;
import ca.uhn.fhir.jpa.provider.JpaSystemProvider;
import ca.uhn.fhir.jpa.search.DatabaseBackedPagingProvider;
import ca.uhn.fhir.jpa.test.config.TestR4Config;
import ca.uhn.fhir.rest.api.EncodingEnum;
import ca.uhn.fhir.rest.server.RestfulServer;
import ca.uhn.fhir.rest.server.provider.ResourceProviderFactory;
import java.net.InetSocketAddress;
import javax.sql.DataSource;
import org.apache.commons.dbcp2.BasicDataSource;
import org.eclipse.jetty.ee10.servlet.ServletContextHandler;
import org.eclipse.jetty.ee10.servlet.ServletHolder;
import org.eclipse.jetty.server.Server;
import org.eclipse.jetty.server.ServerConnector;
import org.springframework.context.annotation.AnnotationConfigApplicationContext;
import org.springframework.context.annotation.Bean;
import org.springframework.context.annotation.Configuration;

/**
 * HAPI's JPA server for R4 over an H2 database in memory, at http://127.0.0.1:PORT/fhir, for tests/real/test_hapi.py.
 *
 * <p>Run as a source file with HAPI's jars on the class path (hapi/pom.xml names them): {@code java -cp 'lib/*' Hapi.java}.
 * It picks a free port and prints one line "listening PORT"; it ends when its standard input does.
 */
public class Hapi {

    /** HAPI's own test set-up, with an ordinary database pool instead of one that counts queries. */
    @Configuration
    public static class InMemory extends TestR4Config {
        @Override
        @Bean
        public DataSource dataSource() {
            BasicDataSource pool = new BasicDataSource();
            pool.setDriver(new org.h2.Driver());
            pool.setUrl("jdbc:h2:mem:real");
            pool.setMaxTotal(10);
            return pool;
        }
    }

    public static void main(String[] arguments) throws Exception {
        AnnotationConfigApplicationContext context = new AnnotationConfigApplicationContext(InMemory.class);
        RestfulServer fhir = new RestfulServer(context.getBean(FhirContext.class));
        fhir.setDefaultResponseEncoding(EncodingEnum.JSON);
        fhir.registerProviders(context.getBean("myResourceProvidersR4", ResourceProviderFactory.class).createProviders());
        fhir.registerProvider(context.getBean(JpaSystemProvider.class));
        fhir.setPagingProvider(context.getBean(DatabaseBackedPagingProvider.class));

        ServletContextHandler root = new ServletContextHandler();
        root.addServlet(new ServletHolder(fhir), "/fhir/*");
        Server server = new Server(new InetSocketAddress("127.0.0.1", 0));
        server.setHandler(root);
        server.start();
        System.out.println("listening " + ((ServerConnector) server.getConnectors()[0]).getLocalPort());
        while (System.in.read() >= 0) {
            // Whoever started us holds the other end.
        }
        System.exit(0);
    }
}
